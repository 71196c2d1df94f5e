# SPDX-License-Identifier: Apache-2.0
"""The configuration of K3s on each board: pure functions for role k3s."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

# With these the owner says the address: K3s takes that of flannel-iface, and a VPN gives its own.
OWNERS = frozenset({"node-ip", "flannel-iface", "vpn-auth", "vpn-auth-file"})


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def merged(inventory: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
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


def configuration(
    board: dict[str, Any],
    *,
    server_url: str,
    token_file: str | None = None,
    agent_token_file: str | None = None,
) -> dict[str, Any]:
    """What the role itself says in K3s' configuration of one board.

    `board`: `role` ('server' or 'agent'), `first` (does it start the cluster), `servers` (their number),
    `node` (its name), `address` (as in its TLS name), `container_runtime`, `pause_image` (None for K3s' own),
    `reserved_memory` (a quantity that pods do not get; empty: none).
    """
    config: dict[str, Any] = {"node-name": board["node"]}
    if board["container_runtime"] == "docker":
        config["docker"] = True
    if board["pause_image"]:
        # The one in the bundle's image archive, whichever K3s this is: offline there is no other.
        config["pause-image"] = board["pause_image"]
    if board["role"] == "server":
        config["tls-san"] = [board["address"]]
        if agent_token_file:
            config["agent-token-file"] = agent_token_file
        if board["first"] and board["servers"] > 1:
            config["cluster-init"] = True  # embedded etcd, which the other servers join
    if board["role"] == "agent" or not board["first"]:
        config["server"] = server_url
    if token_file:
        config["token-file"] = token_file
    if board["reserved_memory"]:
        # With the plus K3s adds it to the arguments in the owner's files, instead of replacing them.
        config["kubelet-arg+"] = [f"system-reserved=memory={board['reserved_memory']}"]
    return config


def unit_command(shown: str) -> str | None:
    """The command in `systemctl show --property=ExecStart`, None where the unit has none."""
    match = re.search(r"argv\[\]=(.*?) ;", shown)
    return match.group(1) if match else None


def url_host(address: str) -> str:
    """A host name or an address as it stands in a URL: IPv6 in brackets (RFC 3986)."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def node_address(facts: dict[str, Any], config: dict[str, Any], role: str) -> dict[str, str]:
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


def literal_addresses(texts: list[Any]) -> list[str]:
    """Those of the texts that are IP addresses, as Kubernetes writes them.

    Names are not resolved: by mDNS a board would answer for itself.
    """
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(str(ip_address(str(text).strip("[] "))))
    return found


def boards(names: list[str], variables: Any) -> dict[str, list[str]]:
    """The addresses that the inventory gives each of its boards. `variables` are Ansible's hostvars."""

    def said(name: str) -> list[Any]:
        given = variables[name]
        config = given.get("k3s_board_config") or {}
        own = [config.get(key) for key in ("node-ip", "node-external-ip")]
        listed = [part for value in own for one in _listed(value) for part in str(one).split(",")]
        return [given.get("ansible_host", name), given.get("jetson_k3s_address"), *listed]

    return {name: literal_addresses(said(name)) for name in names}


def servers(answers: list[dict[str, Any]], nodes: dict[str, str]) -> dict[str, str]:
    """The id of each server's boot by node, '' for a server that did not answer.

    `answers` are of run_lock with state read, `nodes` are the names of nodes by inventory name, where known.
    """
    return {nodes[one["item"]] or one["item"].lower(): one.get("boot_id", "") for one in answers}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, all prefixed by the role's name."""
        return {
            "k3s_boards": boards,
            "k3s_configuration": configuration,
            "k3s_merged": merged,
            "k3s_node_address": node_address,
            "k3s_servers": servers,
            "k3s_unit_command": unit_command,
            "k3s_url_host": url_host,
        }
