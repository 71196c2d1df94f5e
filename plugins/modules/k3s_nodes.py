#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Whether a server has K3s, which one, its ranges, and the nodes of its cluster.

Changes nothing.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import glob
import json
import os
import re
from typing import Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_plugins import (
    plugin_daemonsets,
    plugin_pods,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    CORDONED,
    K3S,
    KUBECONFIG,
    Data,
    KubectlError,
    by_kubeconfig,
    get,
    is_true,
    listed,
    run,
    use,
    voter,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_owner import (
    addresses_of,
    owner,
    records,
)

DOCUMENTATION = r"""
module: k3s_nodes
short_description: Whether a server has K3s, and the nodes of its cluster
description: Changes nothing.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  boards:
    description: The addresses that the inventory gives each of its boards (filter C(k3s_boards)).
    type: dict
    required: true
  existing: {type: bool, default: false, description: 'Read the CA of the API server, too.'}
  rights:
    description:
      Rights that the user of the kubeconfig needs. Each has C(verb), C(group), C(resource), C(subresource)
      and C(namespace), all of them texts.
    type: list
    elements: dict
    default: []
"""

RETURN = r"""
installed: {type: bool, description: 'Has this board K3s as a server?'}
version: {type: str, description: Of its K3s; empty where there is none.}
ranges:
  description: C(cluster-cidr), C(service-cidr) and C(cluster-domain) if K3s' files or its unit say them.
  type: dict
daemonsets: {type: list, elements: str, description: Names of the DaemonSets in kube-system.}
settings:
  description: Of each DaemonSet of role gpu_device_plugin there, the hash of its settings, empty without any.
  type: dict
gpu_plugins:
  description:
    Of each DaemonSet of NVIDIA's device plugin in the cluster namespace and name, C(release) of its chart,
    whether the GPU C(operator) has made it, C(selector) and C(terms) by which it selects nodes, and C(nodes)
    with a pod of it.
  type: list
  elements: dict
problem: {type: str, description: 'Why the cluster does not answer, empty if it does.'}
denied: {type: list, elements: dict, description: Those of the rights that the user does not have.}
ca: {type: str, description: 'The CA of the API server in PEM, as the cluster publishes it, or empty.'}
nodes:
  type: list
  elements: dict
  description:
    Of each node name, labels, machine_id and addresses, if known, and whether it is C(ready). C(board) is the
    board of the inventory that it belongs to, empty for none, and C(recorded) whether the cluster has a
    record of the board. C(voter) tells whether its member of etcd is one, and is null without a member.
    C(cordoned) tells whether a run has left the node cordoned.
"""


# Of a DaemonSet's pods, by role gpu_device_plugin (plugin_utils).
IMAGE, SETTINGS = "jetson-k3s.github.io/image-id", "jetson-k3s.github.io/config-sha256"
# K3s' annotation of each node (pkg/nodeconfig).
NAMESPACE = "--namespace=kube-system"
ARGUMENTS = "k3s.io/node-args"
# The answer to one review.
ALLOWED = '{.status.allowed}{"\\n"}'
FILES = ("/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d/*.y*ml")
RANGES = re.compile(
    r"""(?:^|\s--)(cluster-cidr|service-cidr|cluster-domain)[:=\s]\s*["']?([0-9a-z.:/,-]+)""", re.MULTILINE
)


def node_facts(node: Data, record: str, boards: Dict[str, List[str]]) -> Data:
    """By what a node is known again."""
    status = node.get("status") or {}
    name, addresses = node["metadata"]["name"], addresses_of(node)
    return {
        "name": name,
        "board": owner(name, record, addresses, boards),
        "machine_id": (status.get("nodeInfo") or {}).get("machineID", ""),
        "ready": is_true(node, "Ready"),
        "voter": voter(node),
        "addresses": addresses,
        "labels": node["metadata"].get("labels", {}),
        "recorded": record in boards or by_kubeconfig(),
        "cordoned": CORDONED in node["metadata"].get("annotations", {}),
    }


def settings_of(daemonsets: List[Data]) -> Dict[str, str]:
    """The hash of the plugin's settings by DaemonSet; '' for one without settings."""
    annotations = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"].get("annotations") or {}
        for one in daemonsets
    }
    return {name: found.get(SETTINGS, "") for name, found in annotations.items() if IMAGE in found}


def gpu_plugins(daemonsets: List[Data]) -> List[Data]:
    """DaemonSets of NVIDIA's device plugin, with the nodes of their pods."""
    found = plugin_daemonsets(daemonsets)
    pods = plugin_pods(listed("pods", "--all-namespaces")) if found else []

    def nodes(plugin: Data) -> List[str]:
        keys = ("namespace", "name")
        return sorted(pod["node"] for pod in pods if all(pod[key] == plugin[key] for key in keys))

    return [dict(plugin, nodes=nodes(plugin)) for plugin in found]


def read(path: str) -> str:
    """Text of a file, '' where there is none."""
    try:
        with open(path) as stream:
            return stream.read()
    except (OSError, UnicodeError):
        return ""


def ranges(unit: str) -> Dict[str, str]:
    """What K3s' files and, before them, its unit say; the last one counts."""
    texts = [read(path) for pattern in FILES for path in sorted(glob.glob(pattern))]
    return dict(pair for text in [*texts, unit] for pair in RANGES.findall(text))


def ranges_of(nodes: List[Data]) -> Dict[str, str]:
    """The same by the arguments that K3s notes at its servers' nodes."""
    notes = [node["metadata"].get("annotations", {}).get(ARGUMENTS, "[]") for node in nodes]
    words = [json.loads(note) for note in notes]
    return dict(
        pair for found in words if found[:1] == ["server"] for pair in RANGES.findall(" ".join(found))
    )


def version_of() -> str:
    """The version of the API server, which is that of its K3s."""
    found: str = json.loads(run("version", "--output=json"))["serverVersion"]["gitVersion"]
    return found


def published_ca() -> str:
    """The CA of the API server, which Kubernetes gives each namespace."""
    found: str = (get("configmap", "kube-root-ca.crt", NAMESPACE) or {}).get("data", {}).get("ca.crt", "")
    return found


def denied(rights: List[Data]) -> List[Data]:
    """Those of the rights that the user does not have, by one call."""
    if not rights:
        return []
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": right},
        }
        for right in rights
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    said = run("create", "--validate=false", "--filename=-", "--output=jsonpath=" + ALLOWED, stdin=text)
    answers = said.split()
    if len(answers) != len(rights):
        raise KubectlError("the API server answers {} of {} reviews".format(len(answers), len(rights)))
    return [right for right, answer in zip(rights, answers) if answer != "true"]  # noqa: B905 - Python 3.6


def observe(boards: Dict[str, List[str]]) -> Data:
    """The nodes of the cluster, and the DaemonSets of kube-system and of NVIDIA's device plugin."""
    known = records()
    items = listed("nodes,daemonsets.apps", "--all-namespaces")
    nodes = [item for item in items if item["kind"] == "Node"]
    everywhere = [item for item in items if item["kind"] == "DaemonSet"]
    found = [one for one in everywhere if one["metadata"]["namespace"] == "kube-system"]
    return {
        "nodes": [node_facts(node, known.get(node["metadata"]["name"], ""), boards) for node in nodes],
        "daemonsets": [one["metadata"]["name"] for one in found],
        "settings": settings_of(found),
        "gpu_plugins": gpu_plugins(everywhere),
        "noted": ranges_of(nodes),
    }


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "boards": {"type": "dict", "required": True},
            "existing": {"type": "bool", "default": False},
            "rights": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    use(module.params)
    unit, version, problem = "", "", ""
    if not by_kubeconfig():
        unit = module.run_command(
            ["systemctl", "show", "--property=LoadState,ActiveState,ExecStart", "k3s.service"]
        )[1]
        said = module.run_command([K3S, "--version"])[1] if os.path.exists(K3S) else ""
        version = " ".join(re.findall(r"k3s version (v\S+)", said))
    found = {"nodes": [], "daemonsets": [], "settings": {}, "gpu_plugins": [], "noted": {}}  # type: Data
    refused, ca = [], ""  # type: List[Data], str
    if by_kubeconfig() or "ActiveState=active" in unit.splitlines():
        try:
            refused = denied(module.params["rights"])
            version = version or version_of()
            ca = published_ca() if module.params["existing"] else ""
            found = observe(module.params["boards"])
        except (KubectlError, OSError, ValueError, KeyError) as error:
            problem = str(error)  # the cluster's nodes are not known
    module.exit_json(
        changed=False,
        installed=by_kubeconfig() or "LoadState=loaded" in unit.splitlines(),
        version=version,
        problem=problem,
        denied=refused,
        ca=ca,
        ranges=dict(found.pop("noted"), **ranges(unit)),
        **found,
    )


if __name__ == "__main__":
    main()
