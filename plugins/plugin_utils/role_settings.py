# SPDX-License-Identifier: Apache-2.0
"""Checks the settings of roles by their argument_specs, for all hosts of a run at one time.

Ansible's own check is a task of each role on each host. A playbook that has checked the settings here has
the roles without it (rolespec_validate).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.board_variables import Hostvars, Variables
from jinja2 import UndefinedError

ROLES = Path(__file__).parents[2] / "roles"
# Copies of other roles' settings, for the documents.
COPIES = "settings_of_other_roles"


def specified(role: str) -> dict[str, Any]:
    """The settings of a role. What only other roles and playbooks pass to it begins with `__`."""
    path = ROLES / role / "meta/argument_specs.yml"
    entries = yaml.safe_load(path.read_text())["argument_specs"] if path.exists() else {}
    options = (entry.get("options") or {} for name, entry in entries.items() if name != COPIES)
    return {
        name: {key: value for key, value in spec.items() if key != "required"}
        for of_entry in options
        for name, spec in of_entry.items()
        if not name.startswith("__")
    }


def given(names: Iterable[str], variables: Variables) -> Iterator[tuple[str, Any]]:
    """The settings that a host has. One whose template needs facts is checked where a role reads it."""
    for name in names:
        try:
            if name in variables:
                text = json.dumps(variables[name], default=str)
                if "{{" not in text:
                    yield name, json.loads(text)
        except (AnsibleError, UndefinedError):
            continue


def problems(hosts: Iterable[str], hostvars: Hostvars, roles: Iterable[str]) -> list[str]:
    """What is wrong with the settings of these roles, a line for each host and setting."""
    specs: dict[str, Any] = {}
    for role in roles:
        specs |= specified(role)
    validator = ArgumentSpecValidator(specs)
    found: dict[str, list[str]] = {}
    checked: dict[str, list[str]] = {}
    for host in hosts:
        settings = dict(given(specs, hostvars[host]))
        same = json.dumps(settings, sort_keys=True)  # most hosts of a group have the same
        if same not in checked:
            checked[same] = list(validator.validate(settings).error_messages)
        for message in checked[same]:
            found.setdefault(message, []).append(host)
    return [f"{', '.join(names)}: {message}" for message, names in found.items()]


FILTERS: Mapping[str, Any] = {"role_settings": problems}
