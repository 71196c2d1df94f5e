# SPDX-License-Identifier: Apache-2.0
"""Whether boards may be reset or forgotten: a cluster's end is confirmed, and etcd keeps its majority. Pure.

`fleet` has the facts of the servers of a run that answer, by inventory name, in the order in which they
leave. `cluster` is what they leave: `staying`, the servers of the inventory that the run leaves alone;
`kubectl` (the one of them that runs it, '' if none answers); `nodes` of its cluster; for forget.yml,
`installed`, the servers that answer and have K3s.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

from ansible import context
from ansible.utils.unsafe_proxy import wrap_var

Facts = dict[str, Any]
Nodes = list[dict[str, Any]]
"""Nodes as the module k3s_nodes returns them: `voter` is null for a node without etcd."""

UNCHANGED = "Nothing was changed on any board."


def names_in(text: str | list[str]) -> set[str]:
    """The names in `k3s_reset_cluster`, which are separated by commas."""
    return set(re.split(r"[,\s]+", text) if isinstance(text, str) else text) - {""}


def list_of(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(names) or "none"


def node_of(facts: Facts) -> str:
    """The name of a board's node, as role preflight has checked it."""
    return str(facts["hostname"]).lower()


def majority_lost(nodes: Nodes, leaving: Iterable[str]) -> str:
    """Why these nodes cannot leave etcd one after the other, in this order; '' if they can.

    K3s is stopped on a node before its member is removed: otherwise K3s would restart and join again. So in
    each step the other members need a majority by themselves.
    """
    members = {node["name"]: node["voter"] and node["ready"] for node in nodes if node["voter"] is not None}
    for name in leaving:
        working = [other for other, works in members.items() if works and other != name]
        majority = len(members) // 2 + 1
        if name in members and len(members) > 1 and len(working) < majority:
            return (
                f"while {name} leaves, etcd has {len(members)} members and needs {majority} that work, and "
                f"these would be left: {list_of(working)}"
            )
        members.pop(name, None)
    return ""


def ends(fleet: dict[str, Facts], nodes: Nodes, leaves: bool) -> list[str]:
    """Servers whose data end with this run: nothing stays, or what stays is not their cluster."""
    known = {node["name"] for node in nodes}
    server = {name: facts["k3s"]["server"] for name, facts in fleet.items()}
    if not leaves:
        return [name for name in fleet if server[name]["installed"]]
    # One that does not run any more has left before.
    return [name for name, facts in fleet.items() if server[name]["active"] and node_of(facts) not in known]


def refusal(
    fleet: dict[str, Facts], cluster: Facts, leaves: bool, confirmed: str | list[str], command: str
) -> str:
    """Why this run must not reset its boards; '' if it may.

    With `leaves` the boards leave a cluster that goes on. `command` is this run's, without the confirmation.
    """
    if leaves and not cluster["kubectl"]:
        wiped = f" -e k3s_reset_cluster={','.join(fleet)}" if fleet else ""
        return (
            f"No server that stays ({list_of(cluster['staying'])}) answers and runs the cluster, so no board "
            f"can leave it. Start one, and run the same command again. If the cluster is gone for good: "
            f"{command} -e jetson_k3s_confirm=without-server{wiped}. {UNCHANGED}"
        )
    last = ends(fleet, cluster["nodes"], leaves)
    if not set(last) <= names_in(confirmed):
        return (
            f"This run ends the data of {list_of(last)}: no server that stays has them. The cluster's "
            f"objects, CAs and tokens are lost, and the volumes on the boards of this run. {UNCHANGED} "
            f"If that is what you want: {command} -e k3s_reset_cluster={','.join(last)}"
        )
    problem = majority_lost(cluster["nodes"], map(node_of, fleet.values())) if leaves else ""
    if problem:
        return (
            f"{list_of(fleet)} cannot leave the cluster: {problem}. Repair the others first, or let fewer "
            "servers leave. To go on with one server alone, restore a backup on it, with no other server in "
            f"the inventory. {UNCHANGED}"
        )
    return ""


def recorded_node(board: str, nodes: Nodes) -> str:
    """The node of a board that may be gone: by the cluster's record, or else by the board's name."""
    own = [node["name"] for node in nodes if node["board"] == board]
    return own[0] if own else board.lower()


def unforgettable(gone: list[str], cluster: Facts) -> str:
    """Why the cluster must not forget these boards of the inventory; '' if it may."""
    if not cluster["staying"]:
        return (
            f"{list_of(gone)}: no server would be left, so the node cannot be deleted. The only server of a "
            f"cluster is removed by reset.yml. {UNCHANGED}"
        )
    if not cluster["kubectl"]:
        return (
            f"No server that stays ({list_of(cluster['staying'])}) answers and runs the cluster. Start one, "
            f"and run the same command again. {UNCHANGED}"
        )
    ready = {node["board"] for node in cluster["nodes"] if node["ready"] and node["voter"] is not None}
    running = [name for name in gone if name in ready or name in cluster["installed"]]
    if running:
        return (
            f"{list_of(running)}: K3s is there and is a member of etcd, which it would join again. Remove "
            f"it by playbooks/reset.yml --limit {','.join(running)}. If the board has died or was flashed, "
            f"wait a minute until its node is not Ready. {UNCHANGED}"
        )
    return ""


def command(confirmed: str | list[str]) -> str:
    """The run's command as far as it says which boards it is for, and what else was confirmed."""
    given = context.CLIARGS
    words = ["ansible-playbook"]
    for name in given.get("inventory") or ():
        words += ["-i", name]
    words += given.get("args") or ["playbooks/reset.yml"]
    if given.get("subset"):
        words += ["--limit", given["subset"]]
    if confirmed:
        words += ["-e", f"jetson_k3s_confirm={','.join(sorted(names_in(confirmed)))}"]
    return shlex.join(words)


# Boards' own words stay unsafe.
FILTERS = {
    "k3s_reset_command": command,
    "k3s_reset_node": lambda *given: wrap_var(recorded_node(*given)),
    "k3s_reset_refusal": lambda *given: wrap_var(refusal(*given)),
    "k3s_reset_unforgettable": lambda *given: wrap_var(unforgettable(*given)),
}
