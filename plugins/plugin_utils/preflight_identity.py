# SPDX-License-Identifier: Apache-2.0
"""Who the boards are: hostnames, machine-ids and nodes, of this run and of the cluster.

Pure functions behind the preflight role. A finding has id, found, expected and fix. `fleet` is {inventory
name: facts} of the boards that answer, `named` those of them that get their inventory name
(jetson_set_hostname), `nodes` what the cluster says about its nodes.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import host_names

Finding = dict[str, str]
Facts = dict[str, Any]

# Interfaces whose addresses many boards have: of containers, and of L4T's USB device mode.
SHARED = re.compile(r"(cni|docker|flannel|l4tbr|lxc|usb|rndis|virbr)\S*|br-\S+")


def installed(facts: Facts) -> bool:
    """Has the board K3s?"""
    return bool(facts["k3s"]["server"]["installed"] or facts["k3s"]["agent"]["installed"])


def name_of(host: str, facts: Facts, named: list[str]) -> str:
    """The hostname that the board will have when K3s starts, in lower case as K3s makes it; '' for none."""
    name = host if host in named else facts["hostname"]
    return name.lower() if isinstance(name, str) else ""


def node_of(facts: Facts) -> str:
    """The name of the node that a board with K3s has; '' without K3s."""
    node = facts["k3s"]["settings"].get("node-name") or facts["hostname"]
    return str(node).lower() if installed(facts) else ""


def own_addresses(facts: Facts) -> set[str]:
    """The board's addresses that no other board has."""
    return {
        str(entry["address"]).partition("/")[0]
        for entry in facts["network"]["addresses"]
        if not SHARED.fullmatch(str(entry["device"]))
    }


def strangers(fleet: dict[str, Facts], nodes: list[Facts]) -> list[Facts]:
    """The cluster's nodes that are no board of the fleet.

    A node is the board whose K3s has its name. It is also the board that has its address and its name or
    machine-id: K3s was removed from it, or it was flashed again.
    """
    installed_as = {node_of(facts) for facts in fleet.values()}
    unlike = [node for node in nodes if str(node["name"]) not in installed_as]
    if not unlike:  # each board asks, and most clusters have no other node
        return []
    by_name: dict[str, list[set[str]]] = {}
    by_machine: dict[str, list[set[str]]] = {}
    for facts in fleet.values():
        addresses = own_addresses(facts)
        by_name.setdefault(str(facts["hostname"]).lower(), []).append(addresses)
        by_machine.setdefault(str(facts["machine_id"]), []).append(addresses)

    def is_board(node: Facts) -> bool:
        same = by_name.get(str(node["name"]), []) + by_machine.get(str(node["machine_id"]), [])
        there = {*map(str, node["addresses"])}
        return any(not there.isdisjoint(own) for own in same)

    return [node for node in unlike if not is_board(node)]


def is_anothers(host: str, node: Facts) -> bool:
    """Is the node another board's, or of none that is known? The board's hostname decides nothing."""
    return bool(node["board"] != host)


def node_text(node: Facts) -> str:
    """A node as a finding names it."""
    return f"the cluster's node {node['name']} ({', '.join(map(str, node['addresses'])) or 'no address'})"


def findings_of_hostname(
    host: str,
    fleet: dict[str, Facts],
    inventory: list[str],
    named: list[str] | None = None,
    nodes: list[Facts] | None = None,
) -> list[Finding]:
    """Can the hostname be the name of the node, and is it the name of no other board or node?

    `inventory` has the names of all boards, also of those not in this run, and `nodes` are other nodes.
    """
    named = named or []
    name = name_of(host, fleet[host], named)
    others = {other: facts for other, facts in fleet.items() if other != host}
    same = [
        other
        for other, facts in others.items()
        if name and name in (name_of(other, facts, named), node_of(facts))
    ]
    theirs = [node for node in nodes or [] if name and name == node["name"]]
    same += map(node_text, theirs)
    reserved = name in [other.lower() for other in inventory if other != host]
    findings = []
    if same or reserved:
        findings.append(
            {
                "id": "hostname-duplicate",
                "found": f"{host} and {', '.join(same)} all call themselves {name!r}"
                if same
                else f"{host} calls itself {name!r}, as the inventory calls another board",
                "expected": "one hostname per board: it becomes the node's name",
                "fix": f"For each board its own: sudo hostnamectl set-hostname {host}. Or set "
                "jetson_set_hostname: true in the inventory, then site.yml gives boards without K3s their "
                f"inventory names. If the node is of a board that {host} replaces: playbooks/forget.yml "
                f"--limit {host}.{''.join(claim(host, node) for node in theirs)}",
            }
        )
    return findings + findings_of_form(host, fleet[host], host in named)


def findings_of_form(host: str, facts: Facts, named: bool) -> list[Finding]:
    """Can a node have this name?"""
    why = host_names.name_problem(host if named else facts["hostname"])
    found = f"hostname {facts['hostname']!r}: {why}"
    fix = f"sudo hostnamectl set-hostname {own_name(host)}"
    if named:
        found = f"the inventory name {host!r}, which would be the hostname (jetson_set_hostname): {why}"
        fix = f"Name the board in the inventory: jetson-1 ansible_host={host}"
    elif why is None and host_names.is_itself(str(facts.get("hostname_file") or "").strip().lower()):
        why = found = (
            f"/etc/hostname has {facts['hostname_file']!r}, so the DHCP server chooses the hostname, which "
            f"is {facts['hostname']!r} now"
        )
    if why is None:
        return []
    return [
        {
            "id": "hostname-invalid",
            "found": found,
            "expected": "63 letters, digits, '-' and '.' at most, no address, and no name of the computer "
            "itself such as localhost: it becomes the node's name",
            "fix": fix,
        }
    ]


def own_name(host: str) -> str:
    """A hostname for the board: that of the inventory if a node can have it."""
    return host.lower() if host_names.name_problem(host) is None else "NAME"


def claim(host: str, node: Facts) -> str:
    """How a person says that a node is the board's, where neither the cluster nor the inventory says so."""
    if not is_anothers(host, node):
        return ""
    return (
        f" If the node is {host} itself: set jetson_k3s_address for {host} to the node's address, or type on "
        f"a server: sudo k3s kubectl -n kube-system annotate secret {node['name']}.node-password.k3s "
        f"jetson-k3s.github.io/board={host} --overwrite."
    )


def findings_of_known_node(
    host: str, fleet: dict[str, Facts], inventory: list[str], nodes: list[Facts]
) -> list[Finding]:
    """May a run drain or delete the node with the board's hostname? It may be the node of another board."""
    others = [node for node in nodes if is_anothers(host, node)]
    return findings_of_hostname(host, fleet, inventory, [], others)


def findings_of_machine_id(host: str, fleet: dict[str, Facts], unlike: list[Facts]) -> list[Finding]:
    """Has another board, or a node of the cluster that is no board, the machine-id of this board?"""
    mine = fleet[host]["machine_id"]
    same = [other for other, facts in fleet.items() if other != host and facts["machine_id"] == mine]
    same += [node_text(node) for node in unlike if node["machine_id"] == mine]
    if not same or not mine:
        return []
    return [
        {
            "id": "machine-id-duplicate",
            "found": f"{host} and {', '.join(same)} share the machine-id {mine}",
            "expected": "one machine-id per board (cloned cards share it, and then DHCP addresses too)",
            "fix": "sudo rm -f /etc/machine-id /var/lib/dbus/machine-id && sudo systemd-machine-id-setup && "
            "sudo reboot",
        }
    ]


def findings_of_identity(
    host: str, fleet: dict[str, Facts], inventory: list[str], named: list[str], nodes: list[Facts]
) -> list[Finding]:
    """All findings of a board that is to be a node. `nodes` are all of the cluster."""
    unlike = strangers(fleet, nodes)
    others = [node for node in nodes if node in unlike or is_anothers(host, node)]
    return findings_of_hostname(host, fleet, inventory, named, others) + findings_of_machine_id(
        host, fleet, unlike
    )


def findings_of_node(host: str, facts: Facts, named: list[str]) -> list[Finding]:
    """Would K3s register a second node, because the hostname is no longer that of the installation?"""
    node, name = node_of(facts), name_of(host, facts, named)
    if node in ("", name):
        return []
    keep = f"To keep the node: sudo hostnamectl set-hostname {node}."
    found = f"the board's node is {node}, and its hostname is {name}"
    if host in named:
        keep = (
            f"To keep the node: call the board {node} in the inventory, or set jetson_set_hostname: false "
            "for it."
        )
        found = f"the board's node is {node}, and jetson_set_hostname would make its hostname {name}"
    return [
        {
            "id": "node-renamed",
            "found": found,
            "expected": "one name: K3s would register a second node, and the first would stay in the "
            "cluster, NotReady",
            "fix": f"{keep} For a node {name} take K3s off first (playbooks/reset.yml --limit {host} -e "
            f"jetson_k3s_confirm=without-server), and type on a server: sudo k3s kubectl delete node {node}; "
            f"sudo k3s kubectl -n kube-system delete secret {node}.node-password.k3s. Then this again.",
        }
    ]


def owner_of(name: str, nodes: list[Facts]) -> str | None:
    """The board of the node with this name, '' if nobody knows, None if there is no such node."""
    return next((str(node["board"]) for node in nodes if node["name"] == name), None)
