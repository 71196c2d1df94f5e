# SPDX-License-Identifier: Apache-2.0
"""The address of a node whose board has several default routes."""

from __future__ import annotations

from typing import Any

# With these the owner says the address: K3s takes that of flannel-iface, and a VPN gives its own.
OWNERS = frozenset({"node-ip", "flannel-iface", "vpn-auth", "vpn-auth-file"})


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


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filter, prefixed by the role's name."""
        return {"k3s_node_address": node_address}
