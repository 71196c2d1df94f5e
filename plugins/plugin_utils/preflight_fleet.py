# SPDX-License-Identifier: Apache-2.0
"""What each board of a run is compared with, and the servers that the run connects to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_variables,
    existing_cluster,
    preflight_k3s,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.board_variables import (
    Facts,
    Hostvars,
)


class Run(TypedDict):
    """The inventory, and the boards of this run."""

    host: str
    groups: Mapping[str, list[str]]
    hosts: list[str]
    """All that the run is for, also those that do not answer."""
    reached: list[str]
    """Those that answer and have not failed."""
    fleet: str
    """A Fleet as JSON, '' where it was not made. Each board reads it, which takes seconds with hostvars.

    Ansible evaluates each part of its own lists and dictionaries when it is read. JSON's are Python's.
    """


class Fleet(TypedDict):
    """What each board is compared with: made once for all boards of a run."""

    facts: dict[str, Facts]
    """Of the boards that answer, the facts that are compared."""
    named: list[str]
    """Those of them that get their inventory name before K3s is installed on them."""
    nodes: list[Facts]
    """The cluster's nodes, as the servers say."""
    inventory: list[str]
    """All hosts of the inventory."""
    cluster: list[str]
    """Those of group k3s_cluster."""


class Servers(TypedDict):
    """The servers that this run connects to."""

    joined: str
    """The one that boards join."""
    kubectl: str
    outside: list[str]
    """With several servers: those outside of --limit, if no server of this run can be used for kubectl."""
    answering: list[str]
    """Those of them that answer."""
    asked: list[str]
    """Those that say which nodes the cluster has."""


class Remaining(TypedDict):
    """Servers that stay in the cluster when others leave it."""

    server: str
    """The first one that answers and runs K3s; '' for none."""
    nodes: list[Facts]
    installed: list[str]
    """Servers that answer and have K3s."""


def flag(value: Any) -> bool:
    """Is a switch of the inventory on?"""
    return bool(boolean(value, strict=False))


def servers(run: Run, hostvars: Hostvars, pinged: list[Facts]) -> Servers:
    """The servers that this run connects to.

    All servers share the cluster's data, so kubectl can use each of them. Boards still join the server of
    their configuration. `pinged` are the results of a ping of the servers `outside`, [] before it.
    """
    members = existing_cluster.api_servers(run["groups"])
    fleet = board_variables.facts_of([name for name in members if name in run["reached"]], hostvars)
    joined = members[0]
    kubectl = preflight_k3s.asked(joined, fleet, members, run["hosts"])
    elsewhere = [name for name in members if name not in run["hosts"]]
    outside = elsewhere if len(members) > 1 and kubectl not in run["reached"] else []
    answering = [entry["item"] for entry in pinged if "ping" in entry]
    if outside and answering and kubectl not in answering:
        kubectl = answering[0]
    active = kubectl in fleet and fleet[kubectl]["k3s"]["server"]["active"]
    begins = joined in fleet and not fleet[joined]["k3s"]["server"]["installed"]
    return {
        "joined": joined,
        "kubectl": kubectl,
        "outside": outside,
        "answering": answering,
        # For a first server without K3s those of other runs, too.
        "asked": [
            *([kubectl] if kubectl not in run["hosts"] or active else []),
            *(elsewhere if begins else []),
        ],
    }


def remaining(answered: list[Facts], members: list[str], staying: list[str]) -> Remaining:
    """Which server of those that stay is used for kubectl, and what it says."""
    answers = {name: one for name, one in preflight_k3s.answers_of(answered, members).items() if one}
    # A cluster that exists already may have no node but those that leave.
    there = {name for name, one in answers.items() if one["nodes"] or one.get("ca")}
    running = [name for name in answers if name in there and name in staying]
    return {
        "server": running[0] if running else "",
        "nodes": answers[running[0]]["nodes"] if running else [],
        "installed": [name for name, one in answers.items() if one["installed"]],
    }


def nodes_of(answers: Mapping[str, Facts | None]) -> list[Facts]:
    """The cluster's nodes, as the servers say."""
    return [node for answer in answers.values() if answer for node in answer["nodes"]]


def plain(value: Any) -> Any:
    """The value without Ansible's own types, which evaluate each part of it when it is read."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return [*map(plain, value)] if isinstance(value, list) else value


def compared(facts: Facts) -> Facts:
    """The facts of a board that those of other boards are compared with, {} where they have another form.

    Such a board fails by its own facts, and stops no other one.
    """
    parts = {"k3s": ("server", "agent", "settings"), "network": ("addresses",)}
    try:
        found = {key: plain(facts[key]) for key in ("hostname", "machine_id", "clock")}
        found |= {key: {name: plain(facts[key][name]) for name in names} for key, names in parts.items()}
    except (KeyError, TypeError):
        return {}
    return found


def fleet_of(run: Run, hostvars: Hostvars, answered: list[Facts]) -> Fleet:
    """What each board is compared with. `answered` are the results of k3s_nodes."""
    variables = {host: hostvars[host] for host in run["reached"]}
    facts = board_variables.facts_of(run["reached"], variables)
    return {
        "facts": {host: parts for host, one in facts.items() if (parts := compared(one))},
        "named": [host for host, one in variables.items() if flag(one.get("jetson_set_hostname", False))],
        "nodes": [
            {key: plain(node[key]) for key in ("name", "board", "machine_id", "addresses")}
            for node in nodes_of(preflight_k3s.answers_of(answered, []))
        ],
        "inventory": plain(run["groups"].get("all", [])),
        "cluster": plain(run["groups"].get("k3s_cluster", [])),
    }
