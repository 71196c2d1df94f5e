# SPDX-License-Identifier: Apache-2.0
"""What Ansible knows of several hosts: their variables and the boards' facts.

`hostvars` has the hosts of the inventory, also those that do not answer. Ansible makes the variables of a
host again at each access to it, and evaluates each of them when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Facts = dict[str, Any]
Variables = Mapping[str, Any]
Hostvars = Mapping[str, Variables]


def values_of(hosts: Iterable[str], hostvars: Hostvars, name: str) -> dict[str, Any]:
    """{inventory name: value} of those hosts that have the variable."""
    found = {host: hostvars[host] for host in hosts}
    return {host: variables[name] for host, variables in found.items() if name in variables}


def facts_of(hosts: Iterable[str], hostvars: Hostvars) -> dict[str, Facts]:
    """{inventory name: facts} of those boards that have facts."""
    found = values_of(hosts, hostvars, "ansible_facts")
    return {host: facts["jetson"] for host, facts in found.items() if "jetson" in facts}


FILTERS = {"board_facts": facts_of, "board_values": values_of}
