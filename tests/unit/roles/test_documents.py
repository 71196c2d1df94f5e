# SPDX-License-Identifier: Apache-2.0
"""What is made from data is current, and what they are made from is whole."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT, compatibility, generated, variables
from tests.unit.roles.conftest import ROLES

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
def test_every_default_is_specified(role: str) -> None:
    path = ROLES / role / "defaults/main.yml"
    defaults = (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
    assert defaults.keys() <= specified(role).keys()


@pytest.mark.parametrize("role", ALL_ROLES)
def test_every_variable_has_a_type_and_a_description_and_the_name_of_its_role(role: str) -> None:
    for name, option in specified(role).items():
        assert name.startswith(role + "_")
        assert option["type"]
        assert option["description"]


@pytest.mark.parametrize(
    ("defaults", "option", "words"),
    [
        ({"x": 5}, {}, "default `5`"),
        ({"x": []}, {}, "default `[]`"),
        ({"x": ""}, {}, "default empty"),
        ({"x": "{{ other }}"}, {}, "default [computed](defaults/main.yml)"),
        ({"x": "a" * 61}, {}, "default [long](defaults/main.yml)"),
        ({}, {"required": True}, "required"),
        ({}, {}, "no default"),
    ],
)
def test_default_is_told_or_how_it_comes(
    defaults: dict[str, Any], option: dict[str, Any], words: str
) -> None:
    assert variables.default_of("x", option, defaults) == words


def test_readme_keeps_what_is_around_the_marks() -> None:
    readme = f"# role\n\n{variables.BEGIN}\nold\n{variables.END}\n\nend\n"
    written = f"# role\n\n{variables.BEGIN}\nnew\n{variables.END}\n\nend\n"
    assert variables.put_in(readme, "new") == written


def test_readme_without_marks_gets_them_at_its_end() -> None:
    written = f"# role\n\n{variables.BEGIN}\nnew\n{variables.END}\n"
    assert variables.put_in("# role\n", "new") == written


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"fact": "bundle.k3s_version", "from": "1.28", "below": "1.28.7"},
            "K3s 1.28 to below 1.28.7",
        ),
        ({"fact": "docker.version", "below": "29"}, "Docker below 29"),
        ({"fact": "docker.installed", "equals": True}, "`docker.installed` is true"),
        ({"fact": "docker.daemon_json.error", "equals": None}, "`docker.daemon_json.error` is absent"),
        ({"fact": "cgroup_version", "equals": 1}, "cgroup version is 1"),
        ({"fact": "docker.conflicting_flags", "equals": []}, "`docker.conflicting_flags` is empty"),
        ({"fact": "memory_bytes", "at_least": 1500}, "at least 1 500 bytes of memory"),
    ],
)
def test_conditions_are_told_in_words(entry: dict[str, Any], words: str) -> None:
    assert compatibility.condition(entry) == words
