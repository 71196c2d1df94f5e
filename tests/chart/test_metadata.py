# SPDX-License-Identifier: Apache-2.0
"""The rules of chart-testing (`ct lint`) for a chart's own files, without those on network and history.

Its version check is that of the release: chart, image and collection have the same version (tests/release).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.chart.conftest import CHART
from tools.cache import CHECKOUT
from tools.process import run

METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())
TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
# Its schema of Chart.yaml, where what it lets a chart leave out is required here.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["home", "sources", "icon", "maintainers", "keywords", "kubeVersion", "appVersion"],
    "properties": {
        **dict.fromkeys(
            ("name", "home", "version", "appVersion", "description", "icon", "kubeVersion"), TEXT
        ),
        "apiVersion": {"const": "v2"},
        "type": {"const": "application"},
        "keywords": TEXTS,
        "sources": TEXTS,
        "maintainers": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name"],
                "properties": {"name": TEXT, "email": TEXT, "url": TEXT},
            },
        },
        "annotations": {"type": "object", "additionalProperties": TEXT},
    },
}
# Where its rules for yamllint are narrower than ours.
RULES = """
extends: default
rules:
  comments: {require-starting-space: true, min-spaces-from-content: 2}
  line-length: disable
"""


def test_metadata_fits_the_schema_of_chart_testing() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(METADATA)


def test_yamllint_of_chart_testing_has_no_complaint() -> None:
    program = Path(sys.executable).with_name("yamllint")
    done = run(
        [program, "--strict", f"--config-data={RULES}", "Chart.yaml", "values.yaml"], cwd=CHART, check=False
    )
    assert done.returncode == 0, done.stdout


def test_addresses_and_maintainer_are_the_projects() -> None:
    address = yaml.safe_load((CHECKOUT / "galaxy.yml").read_text())["repository"]
    owner = address.rpartition("/")[0]
    name = owner.rpartition("/")[2]
    assert METADATA["home"] == address
    assert METADATA["sources"] == [address]
    assert METADATA["maintainers"] == [{"name": name, "url": owner}]
    icon = re.fullmatch(rf"{re.escape(address)}/raw/main/(.+[.]svg)", METADATA["icon"])
    assert icon
    assert (CHECKOUT / icon[1]).read_text().startswith("<svg ")
