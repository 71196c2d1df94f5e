# SPDX-License-Identifier: Apache-2.0
"""What K3s is on the boards, and what it would become: servers, minor versions, settings.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

import re
from typing import Any

from ansible.utils.unsafe_proxy import wrap_var

Finding = dict[str, str]
Facts = dict[str, Any]


def answers_of(results: list[Facts], servers: list[str]) -> dict[str, Facts | None]:
    """{server: its answer, None if there was no request or no answer}."""
    return dict.fromkeys(servers) | {entry["item"]: entry for entry in results if "installed" in entry}


def findings_of_server(
    host: str,
    fleet: dict[str, Facts],
    server: str,
    answers: dict[str, Facts | None],
    begins: bool = False,
) -> list[Finding]:
    """Would this board, as the first server, begin a second cluster beside a running one?

    Its token would go to all the others, and take them out of theirs. `fleet` is {inventory name: facts},
    `answers` has all servers of the inventory, with None for a server without a request. With
    `begins` the owner says that the other servers have no cluster.
    """
    if host != server or fleet[host]["k3s"]["server"]["installed"]:
        return []
    members = {
        role: [name for name in fleet if name != host and fleet[name]["k3s"][role]["installed"]]
        for role in ("server", "agent")
    }
    members["server"] += [
        name for name, answer in answers.items() if name not in fleet and answer and answer["installed"]
    ]
    if members["server"]:
        other = members["server"][0]
        fix = (
            f"Put {other}, or another server that runs, first in the inventory's [server]. Let the cluster "
            f"forget this one (playbooks/forget.yml --limit {host}), and run this again: it joins."
        )
    else:
        fix = (
            "The cluster's data were on this server alone: playbooks/restore.yml brings them back from a "
            "backup. Or begin a new one: playbooks/reset.yml --limit agent "
            "-e jetson_k3s_confirm=without-server, then this again."
        )
    there = [f"{name} ({role})" for role, names in members.items() for name in names]
    if there:
        return [
            {
                "id": "server-new",
                "found": f"{host} would begin a cluster and has no K3s, while {', '.join(there)} run it "
                "already",
                "expected": "a first server that is in their cluster, or no K3s on the others",
                "fix": fix,
            }
        ]
    silent = ", ".join(name for name, answer in answers.items() if name not in fleet and answer is None)
    if begins or not silent:
        return []
    return [
        {
            "id": "server-unanswered",
            "found": f"{host} would begin a cluster and has no K3s, and {silent} did not answer",
            "expected": "an answer of each other server that it is in no cluster: there would be a second "
            "one",
            "fix": f"Start {silent} and run this again. If there is no cluster, or it is gone for good: the "
            "same command with -e jetson_k3s_confirm=new-cluster.",
        }
    ]


def asked(joined: str, fleet: dict[str, Facts], servers: list[str], hosts: list[str]) -> str:
    """The server for this run's kubectl: the one that boards join, or another that runs if that one is down.

    `fleet` is {inventory name: facts} of the boards that answer, `hosts` names all that the run is for.
    """
    if joined in fleet or joined not in hosts:
        return joined
    return next(
        (name for name in servers if name in fleet and fleet[name]["k3s"]["server"]["active"]), joined
    )


def numbers(version: str) -> tuple[int, ...]:
    """The leading ones of K3s' version: 'v1.33.5+k3s1' and 'v1.33.5-rc2+k3s1' both give (1, 33, 5)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    return tuple(map(int, match.group(1).split(".")))


def findings_of_upgrade(facts: Facts, server: str | None, upgrades: bool = False) -> list[Finding]:
    """Would a node get another minor version of K3s, without all that an upgrade does?

    `server` is the version of the first server, None where it has none or does not say. An agent may follow
    it: that one was off when the others were upgraded. A run that `upgrades` has rules of its own.
    """
    installed, wanted = facts["k3s"]["version"], facts["bundle"].get("k3s_version")
    if upgrades or wanted is None:
        return []
    here, there, then = (
        None if version is None else numbers(version)[:2] for version in (installed, server, wanted)
    )
    follows = there is not None and facts["role"] == "agent" and there >= then
    ahead = there is not None and there < then if here is None else here < then and not follows
    if not ahead:
        return []
    where = f"{installed} on this board" if installed else f"{server} on its server"
    return [
        {
            "id": "k3s-upgrade",
            "found": f"K3s {where}, and {wanted} to be installed",
            "expected": "the minor version that the cluster has: site.yml neither drains a node nor goes "
            "back",
            "fix": "Run playbooks/upgrade.yml with this bundle first. Or let jetson_k3s_bundle in the "
            "inventory name the bundle that the cluster has. Without a bundle, set k3s_version to its "
            "version.",
        }
    ]


def findings_of_settings(plan: Facts) -> list[Finding]:
    """Would K3s read settings that make the board another node than the roles expect? `plan` is role k3s'."""
    findings = [
        {
            "id": "k3s-option",
            "found": f"{entry['name']} in {entry['source']}",
            "expected": f"no setting that changes {entry['changes']}: {entry['reason']}",
            "fix": f"Take {entry['name']} out of {entry['source']}.",
        }
        for entry in plan["refused"]
    ]
    return findings + [
        {
            "id": "k3s-unread",
            "found": f"{entry['path']} is not understood: {entry['error']}",
            "expected": "YAML with settings of K3s: K3s does not start with another file",
            "fix": f"Correct {entry['path']} on the board.",
        }
        for entry in plan["unread"]
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name.

        Marked here, because up to ansible-core 2.18 texts made of `hostvars` lose their mark as unsafe.
        """
        return {
            "preflight_answers": answers_of,
            "preflight_asked": lambda *given: wrap_var(asked(*given)),
            "preflight_settings": lambda plan: wrap_var(findings_of_settings(plan)),
            "preflight_server": lambda *given: wrap_var(findings_of_server(*given)),
            "preflight_upgrade": findings_of_upgrade,
        }
