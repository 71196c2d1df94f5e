# SPDX-License-Identifier: Apache-2.0
"""Several findings of one board: their texts are complete, and their fixes do not contradict each other."""

import re
from collections import defaultdict

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_docker
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import DOCKERD, RULES, with_facts
from tests.unit.roles.test_preflight import INCOMPATIBLE
from tests.unit.roles.test_preflight_advice import LINES, MISSING

# A setting and its value, as advice gives them; a setting that is to be removed.
SETS = re.compile(r"`([\w.-]+): ?([^`]+)`|\b[Ss]et ([a-z]\w*_\w+) to ([\w.+-]+)")
REMOVES = re.compile(r"[Tt]ake `?([\w.-]+)`? out of")
PLACEHOLDER = re.compile(r"\{[a-z_]+(\.[\w-]+)*\}")
# Values of dockerd's settings, each with a finding of its own.
DOCKER_SETTINGS: dict[str, object] = {
    "log-driver": "local",
    "userns-remap": "default",
    "no-new-privileges": True,
    "seccomp-profile": "unconfined",
    "storage-driver": "vfs",
    "iptables": False,
    "hosts": ["unix:///run/other.sock", "tcp://0.0.0.0:2375"],
}
PLACES = (preflight_docker.FILE, preflight_docker.INVENTORY, preflight_docker.COMMAND)


def changes_of(several: list[Data]) -> Data:
    """All changes together; a later one replaces an earlier one of the same fact."""
    together: Data = {}
    for changes in several:
        together |= changes
    return together


@st.composite
def boards(draw: st.DrawFn) -> Data:
    line = LINES[draw(st.sampled_from(sorted(LINES)))]
    several = draw(
        st.lists(
            st.sampled_from([*(changes for changes, _ in INCOMPATIBLE), *MISSING]), min_size=1, max_size=5
        )
    )
    keys = draw(st.lists(st.sampled_from(sorted(DOCKER_SETTINGS)), unique=True, max_size=3))
    docker = {
        "docker__settings": {key: DOCKER_SETTINGS[key] for key in keys},
        "docker__places": {key: draw(st.sampled_from(PLACES)) for key in keys},
    }
    return with_facts(**(changes_of([line.facts, *several]) | docker))


@given(boards())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_texts_are_complete_and_fixes_do_not_contradict_each_other(board: Data) -> None:
    values, removed = defaultdict(set), set()
    for found in preflight.findings_of_rules(board, RULES):
        for name in ("found", "expected", "fix"):
            assert found[name].strip(), found
            assert not PLACEHOLDER.search(found[name]), found
        # A fix never offers a value that nobody knows.
        assert not re.search(r"\bNone\b", found["fix"]), found
        for key, value, other_key, other_value in SETS.findall(found["fix"]):
            values[key or other_key].add(value or other_value)
        removed.update(REMOVES.findall(found["fix"]))
    several = {key: some for key, some in values.items() if len(some) > 1}
    assert several == {}
    # "Take KEY out, or set KEY to a value that works" is one advice of dockerd's table.
    assert removed & set(values) <= set(DOCKERD)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("key", DOCKER_SETTINGS)
def test_each_way_that_a_fix_offers_for_a_setting_of_docker_ends_the_finding(key: str, place: str) -> None:
    def found(settings: dict[str, object]) -> list[Data]:
        facts = with_facts(docker__settings=settings, docker__places=dict.fromkeys(settings, place))
        return [*preflight.findings_of_rules(facts, RULES)]

    findings = found({key: DOCKER_SETTINGS[key]})
    assert findings and found({}) == []
    for finding in findings:
        assert place == preflight_docker.COMMAND or REMOVES.findall(finding["fix"]) == [key]
        for name, value, *_ in SETS.findall(finding["fix"]):
            assert (name, found({name: yaml.safe_load(value)})) == (key, [])
