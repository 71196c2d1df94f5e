# SPDX-License-Identifier: Apache-2.0
"""The configuration of K3s on a board: the role's settings beside those of the inventory and the owner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from ansible.utils.unsafe_proxy import wrap_var
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    host_names,
    k3s_options,
    k3s_reading,
)

# With these the owner says the address: K3s takes that of flannel-iface, and a VPN gives its own.
OWNERS = frozenset({"node-ip", "flannel-iface", "vpn-auth", "vpn-auth-file"})


class Settings(TypedDict):
    """What the inventory and this run say of K3s on a board."""

    role: str
    """'server' or 'agent'."""
    first: bool
    """Whether this server starts the cluster, which others join."""
    servers: list[str]
    node: str
    address: str
    """By which the board is reached."""
    server_url: str
    container_runtime: str
    token_file: str
    has_token: bool
    """Whether the inventory has a token to join with."""
    agent_token_file: str
    has_agent_token: bool
    """Whether agents have a token of their own."""
    config: dict[str, Any]
    """K3s' settings of the inventory for this board."""
    device_plugin: dict[str, Any]
    """gpu_device_plugin_config."""
    migrates: bool
    """Whether flags of the stock script go on as configuration."""


class Plan(TypedDict):
    """What preflight judges: the settings that K3s will read. It is shown at -v, so it has no secret."""

    settings: dict[str, str | None]
    external_datastore: bool
    own_agent_token: bool
    """Whether the owner's files have a token for agents."""
    kubelet_arguments: dict[str, str | None]
    feature_gates: dict[str, list[str]]
    unread: list[dict[str, str]]
    """Files that K3s does not understand, each with `path` and `error`."""
    refused: list[dict[str, str]]
    """Settings that the roles refuse, as k3s_options.refused."""


def reserved_memory(device_plugin: Any, board_bytes: int | None) -> Any:
    """Memory that the kubelet promises to no pod: the GPU memory in units (docs/sharing.md); '' for none.

    Of a percentage of the board's memory the plugin offers whole units, so up to one unit less.
    """

    def part(given: Any, name: str) -> Any:
        return given.get(name, {}) if isinstance(given, Mapping) else {}

    sharing = part(device_plugin, "sharing")
    units, devices = part(sharing, "units"), part(sharing, "dra")
    found = part(units, "memoryTotal") or (
        part(devices, "memoryTotal") if part(devices, "mode") == "capacity" else ""
    )
    percentage = re.fullmatch("([0-9]{1,3})%", str(found))
    if percentage and board_bytes:
        return f"{board_bytes * int(percentage[1]) // 100 >> 20}Mi"
    return found or ""


def node_address(facts: Mapping[str, Any], config: Mapping[str, Any], role: str) -> dict[str, str]:
    """node-ip and flannel-iface by how the board reaches its server; {} where K3s chooses, or the owner has.

    K3s would take the first default route's address, and flannel that route's interface, even with node-ip
    (pkg/agent/flannel/flannel.go, LookupExtInterface). For the first server, the way to itself gives the
    address that agents join. An address that the role has chosen stays while one default route is away. A
    server that runs keeps its address: etcd knows its members by it. `config` is the inventory's.
    """
    said, network = facts["k3s"]["node_ip"], facts["network"]
    if said["owner"] or any(key.removesuffix("+") in OWNERS for key in config):
        return {}
    devices = {entry["address"].partition("/")[0]: entry["device"] for entry in network["addresses"]}
    present = said["role"]
    if role == "server" and facts["k3s"]["server"]["installed"] and (present is None or present in devices):
        address = present
    else:
        address = network["towards_server"] or present
    # Pods have IPv4 unless the owner says otherwise, and then the owner has to say node-ip, too.
    if address not in devices or ":" in address:
        return {}
    return {"node-ip": address, "flannel-iface": devices[address]}


def configuration(bundle: Mapping[str, Any], settings: Settings, board_bytes: int | None) -> dict[str, Any]:
    """What the role itself says in K3s' configuration of a board, but for its address.

    `bundle` is what the module bundle_info has found, `board_bytes` the board's memory.
    """
    is_server = settings["role"] == "server"
    config: dict[str, Any] = {"node-name": settings["node"]}
    joins = not (is_server and settings["first"])
    if settings["container_runtime"] == "docker":
        config["docker"] = True
    if pause_image := bundle["versions"].get("pause_image"):
        # The one in the bundle's image archive, whichever K3s this is: offline there is no other.
        config["pause-image"] = pause_image
    if is_server:
        config["tls-san"] = [settings["address"] if joins else host_names.host_of(settings["server_url"])]
        if settings["has_agent_token"]:
            config["agent-token-file"] = settings["agent_token_file"]
        if settings["first"] and len(settings["servers"]) > 1:
            config["cluster-init"] = True  # embedded etcd, which the other servers join
    if joins:
        config["server"] = settings["server_url"]
    if settings["has_token"] or joins:
        config["token-file"] = settings["token_file"]
    if memory := reserved_memory(settings["device_plugin"], board_bytes):
        # With the plus K3s adds it to the arguments in the owner's files, instead of replacing them.
        config["kubelet-arg+"] = [f"system-reserved=memory={memory}"]
    return config


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def merged(inventory: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the inventory and of the role in one file; what is a list in both is added up."""
    both = dict(inventory)
    for key, value in ours.items():
        name = key.removesuffix("+")
        theirs = next((one for one in (name, f"{name}+") if one in inventory), None)
        if theirs and isinstance(value, list):
            both[theirs] = [*_listed(inventory[theirs]), *value]
        else:
            both[key] = value
    return both


def plan(jetson: Mapping[str, Any], bundle: Mapping[str, Any], settings: Settings) -> Plan:
    """The settings that K3s will read on a board, also before the role has written its own.

    `jetson` are the board's facts.
    """
    k3s, role, inventory = jetson["k3s"], settings["role"], settings["config"]
    ours = configuration(bundle, settings, jetson["memory_bytes"]) | node_address(jetson, inventory, role)
    migrated = k3s_reading.migrated(k3s[role]["command"]) if settings["migrates"] else {}
    read = k3s_reading.reading(k3s, role, inventory, merged(inventory, ours), migrated)
    judged = k3s_reading.judged(read["options"])
    return {
        "settings": judged["settings"],
        "external_datastore": judged["external_datastore"],
        "own_agent_token": judged["own_agent_token"],
        "kubelet_arguments": judged["kubelet_arguments"],
        "feature_gates": judged["feature_gates"],
        "unread": read["unread"],
        "refused": k3s_options.refused(read, inventory, ours, role),
    }


def own_url(planned: Mapping[str, Any]) -> str:
    """K3s on the board itself, which is a server, by a plan or {}.

    The port of k3s_server_url may be that of a load balancer.
    """
    port = planned.get("settings", {}).get("https-listen-port") or "6443"
    return f"https://127.0.0.1:{port}"


# Texts of a board are marked as unsafe.
FILTERS = {
    "k3s_node_address": node_address,
    "k3s_own_url": own_url,
    "k3s_plan": lambda *given: wrap_var(plan(*given)),
}
