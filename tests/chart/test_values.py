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
