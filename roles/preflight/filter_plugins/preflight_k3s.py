# SPDX-License-Identifier: Apache-2.0
"""What K3s is on the boards, and what it would become: roles, versions, servers, tokens, registries.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

import re
from typing import Any

from ansible.utils.unsafe_proxy import wrap_var

Finding = dict[str, str]
Facts = dict[str, Any]

# Shorter passwords can be guessed by everyone who can reach the server's port; K3s' own have 32 characters.
TOKEN_LENGTH = 16


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


def findings_of_joining(facts: Facts, joined: str, server: str) -> list[Finding]:
    """Would this board join a server that is down? `server` replaces it in this run."""
    if joined == server or any(facts["k3s"][role]["installed"] for role in ("server", "agent")):
        return []
    return [
        {
            "id": "server-down",
            "found": f"the board has no K3s yet and would join {joined}, which does not answer",
            "expected": "a server to join",
            "fix": f"Bring {joined} back, or put {server} first in the inventory's [server] if it is gone "
            "for good.",
        }
    ]


def findings_of_role(facts: Facts, role: str, migrate: bool, stuck: list[str]) -> list[Finding]:
    """Is K3s on this board what its group in the inventory says? `role` is 'server' or 'agent'.

    With `migrate` an installation of the stock script is taken over, unless it has flags that role k3s
    refuses: `stuck`.
    """
    other = {"server": "agent", "agent": "server"}[role]
    own_unit, other_unit = facts["k3s"][role], facts["k3s"][other]
    names = {"server": "k3s", "agent": "k3s-agent"}
    findings = []
    if other_unit["installed"]:
        findings.append(
            {
                "id": "k3s-other-role",
                "found": f"this board already runs K3s as {other} ({names[other]}.service)",
                "expected": f"a board without K3s or with K3s as {role}, as the inventory says",
                "fix": f"Move the board to the group [{other}], or remove K3s from it first.",
            }
        )
    command = own_unit["command"]
    if command is None or command.split()[1:] == [role]:
        return findings
    if not migrate or stuck:
        findings.append(
            {
                "id": "k3s-foreign-unit",
                "found": f"{names[role]}.service starts `{command}`",
                "expected": f"no K3s, or one whose unit starts `k3s {role}` without flags",
                "fix": f"Remove K3s from the board: {', '.join(stuck)} cannot be taken over."
                if stuck
                else "Let the playbook take K3s over (`-e jetson_k3s_confirm=migrate`), or move the flags "
                "from the unit, where they override all, to /etc/rancher/k3s/config.yaml.",
            }
        )
    return findings


def findings_of_runtime(foreign: str, runtime: str, migrate: bool) -> list[Finding]:
    """Would site.yml give another container runtime to a K3s that somebody else has installed?

    `foreign` is that K3s' runtime, empty where there is none.
    """
    if foreign in ("", runtime) or migrate:
        return []
    return [
        {
            "id": "k3s-runtime",
            "found": f"K3s on this board was installed without these roles, and runs its pods with {foreign}",
            "expected": f"{foreign}, or consent to {runtime}: all pods of the node restart, and need their "
            "images again",
            "fix": f"Set k3s_container_runtime to {foreign} in the inventory. To change to {runtime}, run "
            "site.yml with `-e jetson_k3s_confirm=migrate`.",
        }
    ]


def numbers(version: str) -> tuple[int, ...]:
    """The leading ones of K3s' version: 'v1.33.5+k3s1' and 'v1.33.5-rc2+k3s1' both give (1, 33, 5)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    return tuple(map(int, match.group(1).split(".")))


def findings_of_version(facts: Facts) -> list[Finding]:
    """Would K3s become older? Releases of one version (`+k3s1`, `+k3s2`) are alike."""
    installed, wanted = facts["k3s"]["version"], facts["bundle"].get("k3s_version")
    if installed is None or wanted is None or numbers(wanted) >= numbers(installed):
        return []
    return [
        {
            "id": "k3s-newer",
            "found": f"K3s {installed} on this board, and {wanted} to be installed",
            "expected": f"K3s {installed} or newer: a cluster's data do not go back",
            "fix": "Let jetson_k3s_bundle in the inventory name the bundle of the last upgrade. Without a "
            "bundle, set k3s_version to its version.",
        }
    ]


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


def findings_of_registries(facts: Facts, given: bool, problems: list[str]) -> list[Finding]:
    """Would K3s go by the registries of the inventory? `problems` are what role k3s finds wrong with them."""
    if not given:
        return []
    if facts["container_runtime"] == "docker":
        return [
            {
                "id": "registries-docker",
                "found": "k3s_registries, and Docker runs the pods (k3s_container_runtime)",
                "expected": "no k3s_registries: with Docker K3s does not read registries.yaml",
                "fix": "Give Docker's own mirrors: registry-mirrors in nvidia_docker_daemon_config "
                "(roles/nvidia_docker/README.md). Passwords of registries go into imagePullSecrets.",
            }
        ]
    findings = [
        {
            "id": "registries",
            "found": text,
            "expected": "what K3s reads from its registries.yaml",
            "fix": "Correct k3s_registries in the inventory: docs.k3s.io/installation/private-registry",
        }
        for text in problems
    ]
    if facts["k3s"]["registries"] == "owner":
        findings.append(
            {
                "id": "registries-foreign",
                "found": "k3s_registries, and a /etc/rancher/k3s/registries.yaml that another hand has "
                "written",
                "expected": "one of the two: K3s reads a single file",
                "fix": "Put what it says into k3s_registries and remove the file, or take k3s_registries "
                "out.",
            }
        )
    return findings


def findings_of_token(answer: Facts) -> list[Finding]:
    """What the K3s server said about the join token; a server that does not run yet cannot say anything."""
    if answer.get("reason", "unreachable") == "unreachable":
        return []
    if answer["reason"] == "untrusted":
        return [
            {
                "id": "join-token",
                "found": answer["msg"],
                "expected": "a K3s server with a certificate of the CA that the server has in "
                "/var/lib/rancher/k3s",
                "fix": "Set k3s_server_url to the server's address, and check which computer has that "
                "address.",
            }
        ]
    return [
        {
            "id": "join-token",
            "found": answer["msg"],
            "expected": "the token of the running K3s server",
            "fix": "Take k3s_token out of the inventory: agents then get it from the server. Or set it to "
            "what /var/lib/rancher/k3s/server/agent-token says there; for agents `k3s token create` makes "
            "one.",
        }
    ]


def findings_of_token_strength(token: str | None) -> list[Finding]:
    """Can the given token be guessed? The finding shows only its length."""
    length = len((token or "").rpartition(":")[2])
    if token is None or length >= TOKEN_LENGTH:
        return []
    return [
        {
            "id": "join-token-weak",
            "found": f"k3s_token has {length} characters",
            "expected": f"{TOKEN_LENGTH} or more: it lets computers join the cluster",
            "fix": "Leave k3s_token out (the server makes one), or take the output of `openssl rand -hex "
            "16`.",
        }
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
            "preflight_joining": findings_of_joining,
            "preflight_registries": findings_of_registries,
            "preflight_role": findings_of_role,
            "preflight_settings": lambda plan: wrap_var(findings_of_settings(plan)),
            "preflight_runtime": findings_of_runtime,
            "preflight_server": lambda *given: wrap_var(findings_of_server(*given)),
            "preflight_token": findings_of_token,
            "preflight_token_strength": findings_of_token_strength,
            "preflight_upgrade": findings_of_upgrade,
            "preflight_version": findings_of_version,
        }
