# SPDX-License-Identifier: Apache-2.0
"""Findings about the inventory alone, about all of its boards, also those that are not in the run.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from ansible import constants
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.utils.unsafe_proxy import wrap_var
from ansible.utils.vars import load_extra_vars
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    host_kinds,
    preflight_existing,
    preflight_rules,
)
from jinja2 import UndefinedError

Finding = dict[str, str]
Variables = Mapping[str, Any]
Groups = Mapping[str, list[str]]

# Groups that say nothing about the place of a setting.
ALL = {"all", "ungrouped", "k3s_cluster"}
# Connections that go to an address.
BY_ADDRESS = ("ssh", "smart", "paramiko", "paramiko_ssh")
# What makes two hosts of one address different ones.
WAYS = ("ansible_port", "ansible_ssh_common_args", "ansible_ssh_extra_args")
TRUE = ("1", "on", "t", "true", "y", "yes")


def plain(value: Any, default: Any) -> Any:
    """The value in the type of the default: an INI inventory has a text where YAML has another type."""
    if isinstance(default, bool):
        return str(value).lower() in TRUE
    if isinstance(default, (dict, list)) and isinstance(value, str):
        try:
            return yaml.safe_load(value)
        except yaml.YAMLError:
            return value
    return str(value) if isinstance(default, str) else value


def read(entry: Variables, variables: Variables) -> Any:
    """The value that a host has of a variable, in JSON's types."""
    default = entry["default"]
    try:
        value = variables[entry["name"]] if entry["name"] in variables else default
        if not (isinstance(value, str) and "{{" in value):  # up to ansible-core 2.18 such a template stays
            return json.loads(json.dumps(plain(value, default), default=str))
    except (AnsibleError, UndefinedError):
        pass
    return "a template that cannot be evaluated"


def value_of(entry: Variables, variables: Variables) -> str:
    """The value that a host has of a variable, as JSON in one form."""
    return json.dumps(read(entry, variables), sort_keys=True)


def values_of(entry: Variables, hosts: Mapping[str, Variables]) -> dict[str, list[str]]:
    """The hosts by the value that they have of a variable, as JSON."""
    found: dict[str, list[str]] = {}
    for name, variables in hosts.items():
        found.setdefault(value_of(entry, variables), []).append(name)
    return found


def place(hosts: list[str], groups: Groups, compared: Iterable[str]) -> str:
    """The names of hosts, and the groups that have no other compared host."""
    everyone = set(compared)
    own = [
        name
        for name, members in sorted(groups.items())
        if name not in ALL and set(members) & everyone and set(members) & everyone <= set(hosts)
    ]
    return ", ".join(hosts) + (f" (in the group {', '.join(own)})" if own else "")


def findings_of_common(
    table: Iterable[Variables], of: Iterable[str], groups: Groups, hostvars: Mapping[str, Variables]
) -> list[Finding]:
    """Has a variable several values, although one host's value is used for all hosts of a group?

    `table` has the variables, `of` says which of them this playbook uses.
    """
    findings = []
    for entry in table:
        if entry["of"] not in of:
            continue
        members = groups.get(entry["group"], [])
        compared = host_kinds.boards_of(members, hostvars) if entry.get("boards") else members
        hosts = {name: hostvars[name] for name in compared}
        values = values_of(entry, hosts)
        if len(values) < 2:  # noqa: PLR2004 - one value, or no host
            continue
        default = json.dumps(entry["default"], sort_keys=True)
        places = [
            f"{shown(value, default, entry, number)} on {place(names, groups, hosts)}"
            for number, (value, names) in enumerate(values.items(), 1)
        ]
        whom, where = "hosts", f"for the group {entry['group']}, and nowhere else"
        if len(compared) < len(members):
            whom, where = "boards", "for a group of all boards, or for each board to the same value"
        if entry["name"] == "k3s_container_runtime":
            where += ". If a host is no Jetson, set jetson_k3s_host_kind=plain for it"
        findings.append(
            {
                "id": "setting-differs",
                "found": f"{entry['name']}: {'; '.join(places)}",
                "expected": f"one value for all {whom} of [{entry['group']}]: {entry['reason']}",
                "fix": f"Set {entry['name']} {where}.",
            }
        )
    return findings


def shown(value: str, default: str, entry: Variables, number: int) -> str:
    """A value for people: itself where it is short and no secret."""
    if value == default:
        return "the default"
    return str(json.loads(value)) if entry.get("shown") else f"value {number}"


def findings_of_addresses(boards: Iterable[str], hostvars: Mapping[str, Variables]) -> list[Finding]:
    """Have two boards one address? Each playbook would change one board twice, and leave the other one."""
    places: dict[tuple[str, ...], list[str]] = {}
    for name in boards:
        variables = hostvars[name]
        address = str(variables["ansible_host"] if "ansible_host" in variables else name)
        if str(variables["ansible_connection"] if "ansible_connection" in variables else "ssh") in BY_ADDRESS:
            ways = [str(variables[way]) if way in variables else "" for way in WAYS]
            places.setdefault((address.lower(), *ways), []).append(name)
    return [
        {
            "id": "address-duplicate",
            "found": f"{' and '.join(names)} have the same address, {address[0]}",
            "expected": "an address of its own for each board of [k3s_cluster]",
            "fix": "Correct ansible_host of these boards in the inventory.",
        }
        for address, names in places.items()
        if len(names) > 1
    ]


def findings_of_kinds(hosts: Iterable[str], hostvars: Mapping[str, Variables]) -> list[Finding]:
    """Has a host a kind that does not exist? A playbook would take it for a board."""
    words = " or ".join(host_kinds.KINDS)
    return [
        {
            "id": "host-kind",
            "found": f"jetson_k3s_host_kind of {host} is {kind}",
            "expected": f"{words}: a Jetson is a board, every other computer a plain host",
            "fix": f"Set jetson_k3s_host_kind of {host}, or of its group, to {words}.",
        }
        for host, kind in host_kinds.unknown(hosts, hostvars).items()
    ]


def only_in_inventory(
    names: Iterable[str], hosts: Iterable[str], hostvars: Mapping[str, Variables]
) -> list[str]:
    """Those of the variables that a host has, and that the command line has not given with -e."""
    given = load_extra_vars(None)  # read before, at the start of Ansible
    there = {name for variables in map(hostvars.__getitem__, hosts) for name in names if name in variables}
    return sorted(there - given.keys())


def removed(known: Mapping[str, str], hosts: Iterable[str], hostvars: Mapping[str, Variables]) -> str:
    """The removed variables that a host has, each with the variable to set instead; '' without any.

    `known` has the new variable of each removed one.
    """
    there = {name for host in hosts for name in known.keys() & set(hostvars[host])}
    return "; ".join(f"set {known[old]} instead of {old}" for old in sorted(there))


def completed(findings: list[Finding]) -> Any:
    """The findings with their level and their entry in docs/troubleshooting.md, marked as unsafe."""
    return wrap_var([*map(preflight_rules.complete, findings)])


def unreadable(sources: Iterable[str]) -> list[str]:
    """Those of an inventory's files of which Ansible could not read all.

    Ansible warns, and goes on with what comes before the line that it does not understand. A source that does
    not exist is none of them: `inventory` is the default, and some playbooks need none.
    """
    found = []
    setting, constants.INVENTORY_ANY_UNPARSED_IS_FAILED = constants.INVENTORY_ANY_UNPARSED_IS_FAILED, True
    try:
        for source in filter(os.path.exists, sources):
            try:
                InventoryManager(loader=DataLoader(), sources=[source])
            except AnsibleError:
                found.append(source)
    finally:
        constants.INVENTORY_ANY_UNPARSED_IS_FAILED = setting
    return found


# Findings are marked as unsafe, because up to ansible-core 2.18 texts of `hostvars` lose their mark.
FILTERS = {
    "preflight_existing": lambda *given: completed(preflight_existing.findings(*given)),
    "preflight_hosts": lambda *given: completed([*findings_of_addresses(*given), *findings_of_kinds(*given)]),
    "preflight_common": lambda *given: completed(findings_of_common(*given)),
    "preflight_only_in_inventory": only_in_inventory,
    "preflight_removed": removed,
    "preflight_unreadable": unreadable,
}
