# SPDX-License-Identifier: Apache-2.0
"""The table of known-bad releases: each range has its two ends, and each fix leads out of all ranges."""

import re

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.modules import jetson_facts
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_rules as preflight

from tests.unit.roles.places import Data
from tests.unit.roles.preflight_facts import RELEASES, RULES, with_facts

IDS = {entry["id"] for entry in RELEASES}
CONTAINERD = {"container_runtime": "containerd"}
# What a board has beside the release. The last value is the first release that is bad.
BOARDS: dict[str, Data] = {
    "kernel-iptable-raw": {"iptables__raw": "table raw: no"},
    "k3s-1.25.5": CONTAINERD,
    "toolkit-1.19.0": {"soc": "tegra234"},
}
ENDINGS = {"k3s-1.25.5": "+k3s1"}


def found(entry: Data, release: str | None, **board: object) -> set[str]:
    """The findings of the table for a release of this entry's program."""
    fact = entry["fact"].replace(".", "__")
    board_with = {**BOARDS.get(entry["id"], {}), **board, fact: release}
    return {one["id"] for one in preflight.findings_of_rules(with_facts(**board_with), RULES)} & IDS


def before(release: str) -> str:
    """A release that is older by the last number of three."""
    major, minor, patch = (*preflight.version_key(release), 0, 0)[:3]
    return (
        f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.99" if minor else f"{major - 1}.99"
    )


@pytest.mark.parametrize("entry", RELEASES, ids=lambda entry: entry["id"])
def test_each_range_begins_and_ends_where_the_table_says(entry: Data) -> None:
    ending = ENDINGS.get(entry["id"], "")
    assert entry["id"] in found(entry, entry["from"] + ending)
    assert entry["id"] in found(entry, before(entry["below"]) + ending)
    assert entry["id"] not in found(entry, before(entry["from"]) + ending)
    assert entry["id"] not in found(entry, entry["below"] + ending)
    assert found(entry, None) == set(), "an unknown release is none of these"


@pytest.mark.parametrize("entry", RELEASES, ids=lambda entry: entry["id"])
def test_each_entry_says_what_happens_where_and_who_says_so(entry: Data) -> None:
    said = r"https://github\.com/[\w.-]+/[\w.-]+/((issues|pull)/\d+|blob/v[\d.]+/CHANGELOG\.md)"
    assert re.fullmatch(said, entry["source"])
    assert entry["boards"]
    assert entry["happens"]
    assert entry["program"] in {"Docker", "K3s", "NVIDIA Container Toolkit", "runc"}


@pytest.mark.parametrize("release", ["1.17.0", "1.17.3", "1.17.5", "1.17.8", "1.19.0"])
@pytest.mark.parametrize("jetpack", ["4.6.1", "5.1.3", "6.2", "7.2"])
@pytest.mark.parametrize("strict", [False, True])
def test_the_toolkits_that_a_fix_names_are_good(release: str, jetpack: str, strict: bool) -> None:
    """None of them is bad, or too old for the board or for strict mode, which would be two contrary fixes."""
    board: Data = {"jetpack": jetpack, "soc": "tegra234", "strict": strict}
    findings = preflight.findings_of_rules(with_facts(**board, nvidia_runtime__version=release), RULES)
    named = {
        version
        for one in findings
        if one["id"] in IDS
        for version in re.findall(r"nvidia-container-toolkit=([\d.]+)", one["fix"])
    }
    if jetpack != "7.2" or release == "1.19.0":
        assert named or (release == "1.19.0" and jetpack == "4.6.1")
    for version in named:
        again = with_facts(**board, nvidia_runtime__version=version)
        about = [one["id"] for one in preflight.findings_of_rules(again, RULES)]
        assert [name for name in about if "toolkit" in name or "runtime" in name] == [], version


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"nvidia_runtime__version": "1.17.8"}, "toolkit-1.17-compat"),
        ({"nvidia_runtime__version": "1.19.0"}, "toolkit-1.19.0"),
        ({"nvidia_runtime__version": "1.17.2", "jetpack": "5.1.1"}, "toolkit-1.17-graphics"),
        ({"docker__runc": "1.1.3"}, "runc-1.1.3"),
        ({**CONTAINERD, "bundle__k3s_version": "v1.25.5+k3s1"}, "k3s-1.25.5"),
    ],
)
def test_a_bad_release_is_found_alone(changes: Data, finding: str) -> None:
    findings = preflight.findings_of_rules(with_facts(**changes), RULES)
    assert [one["id"] for one in findings] == [finding]


@pytest.mark.parametrize(
    "changes",
    [
        {"nvidia_runtime__version": "1.17.4"},
        {"nvidia_runtime__version": "1.18.2"},
        {"nvidia_runtime__version": "1.19.1"},
        {"nvidia_runtime__version": "1.19.0", "soc": "tegra264", "jetpack": "7.2"},
        {"nvidia_runtime__version": "1.17.8", "platform": "none"},
        {
            "nvidia_runtime__version": "1.17.8",
            "nvidia_runtime__config__values": {"features": {"disable-cuda-compat-lib-hook": True}},
        },
        {**CONTAINERD, "docker__runc": "1.1.3"},
        {**CONTAINERD, "bundle__k3s_version": "v1.25.5+k3s2"},
        {"docker__runc": "1.3.3"},
    ],
)
def test_a_good_release_or_another_board_has_no_finding(changes: Data) -> None:
    findings = preflight.findings_of_rules(with_facts(**changes), RULES)
    assert {one["id"] for one in findings} & IDS == set()


def test_the_package_that_brings_runc_is_the_one_that_the_board_has() -> None:
    ubuntus = with_facts(docker__runc="1.1.3", packages__installed=["docker.io", "runc"])
    own = with_facts(docker__runc="1.1.3", packages__installed=[])
    fixes = [preflight.findings_of_rules(board, RULES)[0]["fix"] for board in (ubuntus, own)]
    assert ["--only-upgrade runc" in fix for fix in fixes] == [True, False]
    assert ["containerd.io" in fix for fix in fixes] == [False, True]


def test_the_version_of_runc_is_that_of_the_running_docker() -> None:
    server: Data = {
        "Components": [{"Name": "Engine", "Version": "24.0.7"}, {"Name": "runc", "Version": "1.1.3"}]
    }
    assert jetson_facts.component(server, "runc") == "1.1.3"
    nothing: list[Data] = [{}, {"Components": None}, {"Components": [{"Name": "runc", "Version": ""}]}]
    assert [jetson_facts.component(one, "runc") for one in nothing] == [None, None, None]
