# SPDX-License-Identifier: Apache-2.0
"""Can boards join the cluster that exists already: its inventory, its API, the rights, the version.

Pure functions behind the preflight role. A finding has id, found, expected and fix.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_token
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.existing_cluster import (
    CONTROLLER,
    GROUP,
    GUIDE,
    KUBECONFIG,
    MANIFEST,
    SERVERS_TOKEN,
    TOKEN,
    URL,
    Groups,
    Hostvars,
    kubeconfig,
    value,
    values,
)

Finding = dict[str, str]
Facts = dict[str, Any]


def ways_findings(groups: Groups, path: str, shown: list[str]) -> list[Finding]:
    """Is the API reached in one way, and is there one cluster?"""
    servers, ways = groups.get("server", []), groups.get(GROUP, [])
    named = [host for host in ways if host != CONTROLLER]
    by = ([f"the group [{GROUP}]"] if named else []) + ([f"{KUBECONFIG}"] if path else [])
    if servers:
        return [
            {
                "id": "existing-and-own",
                "found": f"{' and '.join(by)} beside the group [server] ({', '.join(servers)})",
                "expected": "one cluster in an inventory: one that the playbooks make, or one that exists",
                "fix": "Remove the group [server] to join the existing cluster, or remove "
                f"{' and '.join(by)}.",
            }
        ]
    if named and path:
        return [
            {
                "id": "existing-ways",
                "found": f"the group [{GROUP}] ({', '.join(named)}) and {KUBECONFIG}",
                "expected": "one way to the API of the existing cluster",
                "fix": f"Remove the group [{GROUP}], or remove {KUBECONFIG}.",
            }
        ]
    if len(named) > 1:
        return [
            {
                "id": "existing-ways",
                "found": f"the group [{GROUP}] has {len(named)} hosts: {', '.join(named)}",
                "expected": "one server of the existing cluster, which runs kubectl",
                "fix": f"Leave one host in [{GROUP}].",
            }
        ]
    inside = [host for host in named if host in groups.get("k3s_cluster", [])]
    if inside:
        return [
            {
                "id": "existing-member",
                "found": f"{inside[0]} is in [{GROUP}] and in [k3s_cluster]",
                "expected": "a server that the playbooks do not change, outside of [k3s_cluster]",
                "fix": f"Remove {inside[0]}, or the group [{GROUP}], from [k3s_cluster:children].",
            }
        ]
    if path and not os.path.isfile(path):
        return [
            {
                "id": "existing-kubeconfig",
                "found": f"{KUBECONFIG} is {shown[0]}: there is no file {path} on this computer",
                "expected": "a kubeconfig of the existing cluster",
                "fix": f"Correct {KUBECONFIG}. {GUIDE} shows how to make a kubeconfig.",
            }
        ]
    return []


def token_findings(groups: Groups, hostvars: Hostvars) -> list[Finding]:
    """Has each board a token of agents, and no token of servers?"""
    for host in groups.get("k3s_cluster", []):
        given = value(TOKEN, host, hostvars)
        if value(SERVERS_TOKEN, host, hostvars):
            found, fix = f"k3s_token is set for {host}", f"Remove k3s_token, and set {TOKEN}."
        elif not given:
            found, fix = f"{host} has no {TOKEN}", f"Set {TOKEN} for [k3s_cluster]"
        elif k3s_token.parts(given).user == "server":
            found, fix = f"{TOKEN} of {host} is a token of servers (K10...::server:...)", f"Replace {TOKEN}"
        else:
            continue
        more = (
            ""
            if fix.endswith(".")
            else (
                ". On a server, `sudo k3s token create --ttl 24h` prints one. "
                "/var/lib/rancher/k3s/server/agent-token has another one, if K3s started with --agent-token."
            )
        )
        return [
            {
                "id": "existing-token",
                "found": found,
                "expected": "a token of agents: with that of servers, root on a board could join a server "
                "and read all Secrets",
                "fix": fix + more,
            }
        ]
    return []


def findings(groups: Groups, hostvars: Hostvars) -> list[Finding]:
    """What is wrong with an inventory that names an existing cluster, before any connection."""
    path, shown = kubeconfig(groups, hostvars), [one for one in values(KUBECONFIG, groups, hostvars) if one]
    if not (path or groups.get(GROUP)):
        return []
    found = ways_findings(groups, path, shown)
    if found:
        return found
    urls = values(URL, groups, hostvars)
    if len(urls) > 1 or urls == [""]:
        found.append(
            {
                "id": "existing-url",
                "found": f"{URL} has {len(urls)} values: {', '.join(url or 'none' for url in urls)}"
                if len(urls) > 1
                else f"no {URL}",
                "expected": f"one {URL} for all hosts of [k3s_cluster]: they join one cluster",
                "fix": f"Set {URL} in [k3s_cluster:vars] to https://ADDRESS:6443 of the cluster's server.",
            }
        )
    return found + token_findings(groups, hostvars)


def spoken(right: Mapping[str, str]) -> str:
    """A right for people."""
    resource = right["resource"] + ("." + right["group"] if right["group"] else "")
    resource += "/" + right["subresource"] if right["subresource"] else ""
    where = f"in {right['namespace']}" if right["namespace"] else "in all namespaces"
    return f"{right['verb']} {resource} {where}"


def why_silent(answer: Facts | None) -> str:
    """Why the API does not answer by the results of module k3s_nodes, None without one; '' if it does."""
    if answer is None:
        return "no answer"
    if answer.get("problem"):
        return str(answer["problem"])
    if not answer["installed"]:
        return "K3s is not a server there"
    # A control plane may have no node yet.
    return "" if answer["nodes"] or answer.get("ca") else "K3s does not run there"


def access_findings(answer: Facts | None, host: str, needs: list[str]) -> list[Finding]:
    """Does the API of the existing cluster answer, and may this run do what it needs?

    `answer` is of module k3s_nodes, None without one. `needs` are settings that need a server by SSH.
    """
    way = KUBECONFIG if host == CONTROLLER else f"{host} of the group [{GROUP}]"
    if answer and answer.get("denied"):
        return denied_findings(answer["denied"])
    why = why_silent(answer)
    if why or answer is None:
        return [
            {
                "id": "existing-unreachable",
                "found": f"the existing cluster does not answer by {way}: {why}",
                "expected": "a cluster that answers kubectl",
                "fix": f"Check {way}, and that the cluster runs.",
            }
        ]
    if not answer.get("ca"):
        return [
            {
                "id": "existing-ca",
                "found": "the existing cluster does not publish its CA: no ConfigMap kube-root-ca.crt in "
                "kube-system",
                "expected": "the CA, by which the boards know the server",
                "fix": "Check why the controller root-ca-cert-publisher of the cluster does not write it.",
            }
        ]
    if needs and host == CONTROLLER:
        return [
            {
                "id": "existing-rights-setting",
                "found": f"{' and '.join(needs)} with {KUBECONFIG}",
                "expected": f"settings for which the rights of {MANIFEST} are enough",
                "fix": f"Remove the setting, or reach the API by SSH: name a server in [{GROUP}].",
            }
        ]
    return []


def denied_findings(denied: list[Facts]) -> list[Finding]:
    """The rights that are missing."""
    return [
        {
            "id": "existing-rights",
            "found": f"the user of {KUBECONFIG} may not: {'; '.join(map(spoken, denied))}",
            "expected": f"the rights of {MANIFEST}",
            "fix": f"As an administrator of the cluster: kubectl apply -f {MANIFEST}",
        }
    ]


def skew_findings(wanted: str | None, server: str, source: str) -> list[Finding]:
    """Would an agent get a newer minor version than its server has? `source` is bundle or download."""
    if not wanted or not server or minor(wanted) <= minor(server):
        return []
    fix = (
        "Set jetson_k3s_bundle to a bundle with this version or an older one"
        if source == "bundle"
        else f"Set k3s_version to {server}"
    )
    return [
        {
            "id": "existing-skew",
            "found": f"K3s {wanted} to be installed, and the existing cluster has {server}",
            "expected": "a minor version that is not newer than that of the server (Kubernetes' version skew "
            "policy)",
            "fix": f"{fix}, or upgrade the servers of the cluster first.",
        }
    ]


def minor(version: str) -> tuple[int, int]:
    """(1, 33) of 'v1.33.5+k3s1'."""
    major, number = version.removeprefix("v").split(".")[:2]
    return int(major), int(number)
