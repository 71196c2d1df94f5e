# SPDX-License-Identifier: Apache-2.0
"""What is made from data is current, and what they are made from is whole."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.roles.loading import ROLES
from tools.cache import CHECKOUT
from tools.docs import generated

# Roles without tasks are for modules to share; nobody gives them variables.
ALL_ROLES = sorted(path.parent.name for path in ROLES.glob("*/tasks"))


@pytest.mark.parametrize("path", generated(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_what_is_made_from_data_is_current(path: Path) -> None:
    assert path.exists(), "run `make docs`"
    assert path.read_text() == generated()[path], "run `make docs`"


def specified(role: str) -> dict[str, Any]:
    """Every variable in a role's argument_specs."""
    entries = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    return {name: option for entry in entries.values() for name, option in (entry["options"] or {}).items()}


def entry_points() -> set[tuple[str, str]]:
    """(role, entry point) of everything that another role or a playbook imports by `tasks_from`."""
    found = set()
    for path in (*CHECKOUT.glob("playbooks/**/*.yml"), *ROLES.glob("*/tasks/*.yml")):
        text = path.read_text()
        found.update(re.findall(r"name: (\w+)\n +tasks_from: (\w+)\.yml", text))
        assert len(re.findall("tasks_from:", text)) == len(re.findall(r"name: \w+\n +tasks_from:", text)), (
            path
        )
    return found


@pytest.mark.parametrize(("role", "entry"), sorted(entry_points()))
def test_every_entry_point_is_specified(role: str, entry: str) -> None:
    specs = yaml.safe_load((ROLES / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    assert specs[entry]["short_description"]


@pytest.mark.parametrize("role", ALL_ROLES)
def test_every_variable_is_specified_with_a_type_a_description_and_the_name_of_its_role(role: str) -> None:
    path = ROLES / role / "defaults/main.yml"
    defaults = (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    assert defaults.keys() <= specified(role).keys()
    for name, option in specified(role).items():
        assert name.startswith(role + "_")
        assert option["type"]
        assert option["description"]
