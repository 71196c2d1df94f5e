# SPDX-License-Identifier: Apache-2.0
"""A board of a run, and what is known of its cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_variables,
    existing_cluster,
    host_kinds,
    k3s_configuration,
    preflight_identity,
    preflight_k3s,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.board_variables import (
    Facts,
    Hostvars,
    Variables,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_fleet import (
    Fleet,
    Run,
    flag,
    fleet_of,
    nodes_of,
)


class Results(TypedDict):
    """What earlier tasks of the run have found."""

    server: str
    """The server for kubectl, once it is chosen; '' before."""
    nodes: list[Facts]
    """Of k3s_nodes: what the servers say."""
    k3s_plan: Facts
    docker_plan: Facts
    requests: str
    """Memory that the pods of this board request, as quantities."""
    token: Facts
    """What the server says about the join token."""


class Settings(TypedDict):
    """What the inventory says, and the playbook."""

    ansible_core: str
    accepted: list[str]
    addresses: list[str]
    """Of this board."""
    bundle: bool
    """Whether K3s comes from one."""
    confirmed: list[str]
    """jetson_k3s_confirm."""
    host_kind: str
    """jetson_k3s_host_kind."""
    container_runtime: str
    strict: bool
    api: str
    config: Facts
    """gpu_device_plugin_config."""
    throttle_taint: Facts
    """gpu_device_plugin_throttle_taint."""
    image: str
    """gpu_device_plugin_image."""
    jtop: bool
    """gpu_device_plugin_jtop."""
    labels: Facts
    """k3s_node_labels."""
    supply_host: str
    images: list[str]
    """bundle_images."""
    k3s_version: str
    server_config: Facts
    agent_config: Facts
    board_config: Facts
    server_url: str
    token: str
    token_given: bool
    registries: Any
    proxy: Any
    release_url: str
    sha256: dict[str, str]
    renames: bool
    """jetson_set_hostname."""
    restores: bool
    upgrades: bool


def role_of(run: Run) -> str:
    """The role of this board in the cluster."""
    return "server" if run["host"] in run["groups"].get("server", []) else "agent"


@dataclass(frozen=True)
class Board:
    """A board and what is known of its cluster: the arguments of the filters."""

    facts: Facts
    bundle: Facts
    """What the module bundle_info has found."""
    run: Run
    hostvars: Hostvars
    found: Results
    settings: Settings

    @property
    def host(self) -> str:
        return self.run["host"]

    @cached_property
    def role(self) -> str:
        return role_of(self.run)

    @property
    def is_board(self) -> bool:
        """Whether it is a Jetson, by the inventory."""
        return self.settings["host_kind"] != host_kinds.PLAIN

    def takes(self, step: str) -> bool:
        """Does the host take a step of the playbooks?"""
        return host_kinds.takes(self.settings["host_kind"], step, self.settings["container_runtime"])

    @cached_property
    def gpu_memory(self) -> str:
        """Memory that is reserved for the GPU, as a quantity; '' for none."""
        if not self.is_board:
            return ""
        return str(k3s_configuration.reserved_memory(self.settings["config"], self.facts["memory_bytes"]))

    @cached_property
    def made(self) -> Fleet:
        """What is compared of all boards."""
        if self.run.get("fleet"):
            found: Fleet = json.loads(self.run["fleet"])
            return found
        return fleet_of(self.run, self.hostvars, self.found["nodes"])

    @cached_property
    def reached(self) -> frozenset[str]:
        """Boards that answer and have not failed."""
        return frozenset(self.run["reached"])

    def facts_of(self, name: str, variables: Variables) -> Facts | None:
        """All facts of a board, by its variables; None if it is not in this run or does not answer."""
        here = [name] if name in self.reached else []
        return board_variables.facts_of(here, {name: variables}).get(name)

    @cached_property
    def fleet(self) -> dict[str, Facts]:
        """Facts of the boards that answer: of the others, those that are compared."""
        found = {host: facts for host, facts in self.made["facts"].items() if host in self.reached}
        return found | ({self.host: self.facts} if self.host in self.reached else {})

    @cached_property
    def members(self) -> list[str]:
        """The servers of the inventory, or the host that runs kubectl of an existing cluster."""
        return existing_cluster.api_servers(self.run["groups"])

    @cached_property
    def existing(self) -> bool:
        """Whether the cluster is one that this project did not make."""
        return existing_cluster.is_existing(self.run["groups"])

    @cached_property
    def server(self) -> str:
        """The server for kubectl."""
        return self.found["server"] or self.members[0]

    @cached_property
    def server_variables(self) -> Variables:
        return self.hostvars[self.server]

    @cached_property
    def server_facts(self) -> Facts | None:
        """Facts of the server for kubectl."""
        return self.facts_of(self.server, self.server_variables)

    @cached_property
    def server_settings(self) -> Facts:
        """Settings of the server's K3s, as it will read them; {} if it is not in this run."""
        if self.server_facts is None:
            return {}
        planned: Facts = self.server_variables.get("k3s_plan", {}).get("settings", {})
        return planned

    @cached_property
    def answers(self) -> dict[str, Facts | None]:
        """What each server says, None without a request or an answer."""
        return preflight_k3s.answers_of(self.found["nodes"], self.members)

    @cached_property
    def nodes(self) -> list[Facts]:
        return self.made["nodes"] if self.run.get("fleet") else nodes_of(self.answers)

    @cached_property
    def server_k3s(self) -> str:
        """The version of the server's K3s, '' for none that is known."""
        if self.server_facts is not None:
            return self.server_facts["k3s"]["version"] or ""
        return (self.answers.get(self.server) or {}).get("version") or ""

    @cached_property
    def ranges(self) -> Facts:
        """Networks of pods and services, by K3s' names for them."""
        if self.server_facts is not None:
            return self.server_settings
        said = self.server_variables.get("k3s_server_config", {})
        return {**said, **(self.answers.get(self.server) or {}).get("ranges", {})}

    @cached_property
    def named(self) -> list[str]:
        """Boards that get their inventory name before K3s is installed on them."""
        return [host for host in self.made["named"] if host in self.reached]

    @cached_property
    def name(self) -> str:
        return node_name(self.facts, self.host, self.settings["renames"])

    @cached_property
    def source(self) -> str:
        """Where K3s comes from."""
        return "bundle" if self.settings["bundle"] else "download"


def node_name(facts: Facts, host: str, renames: bool) -> str:
    """The name of the board's node; '' for none."""
    return preflight_identity.name_of(host, facts, [host] if flag(renames) else [])
