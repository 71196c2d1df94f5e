# SPDX-License-Identifier: Apache-2.0
"""A cluster that exists already: which host runs kubectl, and what the inventory must say. Pure functions.

Boards join a K3s cluster that this project did not make. The inventory has no [server]. The API is reached
in one of two ways, and both are one host in the group `existing_server`, which is not in [k3s_cluster]:

* a server of that cluster, by SSH, with `k3s kubectl`
* the controller, with kubectl and `k3s_existing_kubeconfig`. The host CONTROLLER is added in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import controller_paths
from jinja2 import UndefinedError

Groups = Mapping[str, list[str]]
Hostvars = Mapping[str, Mapping[str, Any]]

GROUP = "existing_server"
CONTROLLER = "existing-cluster"
KUBECONFIG, URL, TOKEN, SERVERS_TOKEN = SETTINGS = (
    "k3s_existing_kubeconfig",
    "k3s_server_url",
    "k3s_agent_token",
    "k3s_token",
)
MANIFEST = "plugin/deploy/existing-cluster/rights.yaml"
GUIDE = "docs/existing-clusters.md"
# A subject of each kind of rule in the manifest.
KINDS = ("ClusterRole", "Role")


def api_servers(groups: Groups) -> list[str]:
    """The hosts that can run kubectl: the servers of the inventory, or the host of an existing cluster."""
    return [*(groups.get("server") or groups.get(GROUP) or [])]


def api_host(groups: Groups) -> str:
    """The first of them; '' without any."""
    return (api_servers(groups) or [""])[0]


def is_existing(groups: Groups) -> bool:
    """Do the boards join a cluster that this project did not make?"""
    return not groups.get("server") and bool(groups.get(GROUP))


def value(name: str, host: str, hostvars: Hostvars) -> str:
    """A setting of a host as text, '' without it."""
    try:
        variables = hostvars[host]
        return str(variables[name] or "") if name in variables else ""
    except (AnsibleError, UndefinedError):
        return "a template that cannot be evaluated"


def values(name: str, groups: Groups, hostvars: Hostvars) -> list[str]:
    """The different values of a setting in [k3s_cluster], in the order of the hosts."""
    return [*dict.fromkeys(value(name, host, hostvars) for host in groups.get("k3s_cluster", []))]


def kubeconfig(groups: Groups, hostvars: Hostvars) -> str:
    """The path of the kubeconfig on the controller; '' without the setting."""
    given = [one for one in values(KUBECONFIG, groups, hostvars) if one]
    return controller_paths.controller_path(given[0]) if given else ""


def refusal(groups: Groups, hostvars: Hostvars, wanted: str, by_ssh: str) -> str:
    """Why a playbook cannot run; '' if it can.

    `wanted` is what it does if it is for the servers of the inventory, `by_ssh` if it needs a server by SSH.
    """
    path = kubeconfig(groups, hostvars)
    if groups.get("server") or not (groups.get(GROUP) or path):
        return ""
    if by_ssh and path:
        return (
            f"{by_ssh} needs more rights than {MANIFEST} gives. Reach the API by SSH: name a server of the "
            f"cluster in [{GROUP}], and remove {KUBECONFIG}. Nothing was changed."
        )
    if not wanted:
        return ""
    return (
        "This inventory joins a cluster that exists already, and its servers are not in the inventory. "
        f"{wanted} there, with the tools that made the cluster ({GUIDE}). Nothing was changed."
    )


def missing_groups(
    wanted: Iterable[str], groups: Groups, hosts: Iterable[str], hostvars: Hostvars, limited: bool
) -> list[str]:
    """Those of the groups that no host of the run is in.

    The server of an existing cluster takes the place of [server]. The host CONTROLLER is in each run that
    is not limited.
    """
    here = {group for host in hosts for group in hostvars[host]["group_names"]}
    if GROUP in here or (CONTROLLER in groups.get(GROUP, []) and not limited):
        here.add("server")
    return [group for group in wanted if group not in here]


def rights(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The rights that the manifest gives, each as Kubernetes' ResourceAttributes has it."""
    found = []
    for one in documents:
        if one["kind"] not in KINDS:
            continue
        namespace = one["metadata"].get("namespace", "") if one["kind"] == "Role" else ""
        for rule in one["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    name, _, sub = resource.partition("/")
                    found += [
                        {
                            "verb": verb,
                            "group": group,
                            "resource": name,
                            "subresource": sub,
                            "namespace": namespace,
                        }
                        for verb in rule["verbs"]
                    ]
    return found


def rights_of_text(text: str) -> list[dict[str, str]]:
    """The same, by the text of the manifest."""
    return rights(one for one in yaml.safe_load_all(text) if one)


FILTERS = {
    "api_host": api_host,
    "api_servers": api_servers,
    "existing_cluster": is_existing,
    "existing_kubeconfig": kubeconfig,
    "existing_refusal": refusal,
    "existing_rights": rights_of_text,
    "preflight_missing_groups": missing_groups,
}
