# SPDX-License-Identifier: Apache-2.0
"""What the chart takes, as far as it can be said without Helm."""

import json
import re
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]  # has no stubs
import pytest
import yaml
from tegra_device_plugin.config import settings as config

from tests.chart.helm import CHART

DEPLOY = CHART.parent
# What a template writes by itself, in manifests and chart alike.
OWN = ("mountPath: ", "path: ", "verbs: ", "resources: ", "--", "drop:", "add:", "hostPID: ", "runAsUser: ")

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def test_schema_is_one_and_takes_the_defaults() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


def test_every_value_has_a_default_to_be_found_by() -> None:
    # A parent chart's globals reach every chart.
    assert SCHEMA["properties"].keys() - VALUES.keys() == {"global"}


def test_settings_are_those_that_the_programs_take(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("nothing: 1\nsharing: {nothing: 1}\n")
    with pytest.raises(config.ConfigError) as refused:
        config.load_plugin(file, {}, {})
    allowed = dict(re.findall(r"(\S*nothing) is not known; allowed: (.*)", str(refused.value)))
    known = SCHEMA["properties"]["config"]["properties"]
    assert set(allowed["nothing"].split(", ")) == known.keys()
    # It is known, and refused.
    assert set(allowed["sharing.nothing"].split(", ")) == {*known["sharing"]["properties"], "mps"}


@pytest.mark.parametrize("part", ["base", "agent", "dra"])
def test_templates_have_what_the_manifests_mount_and_may_do(part: str) -> None:
    """Helm itself is asked in test_chart.py, which takes long: this notices a manifest that changes alone."""

    def own(path: Path) -> set[str]:
        lines = (line.strip().removeprefix("- ") for line in path.read_text().splitlines())
        return {line for line in lines if line.startswith(OWN)}

    templates = set().union(*(own(path) for path in (CHART / "templates").glob("*.yaml")))
    manifests = set().union(*(own(path) for path in (DEPLOY / part).glob("*.yaml")))
    # The chart's directory of the memory limit can be chosen.
    chosen = {line for line in manifests if line.endswith("/var/lib/tegra-gpu-limit")}
    assert manifests - templates - chosen == set()
    assert len(manifests) > 10
