#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Nodes, the pods that ask for extended resources, what one pod on each node says, and tokens that end.

Changes nothing.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_plugins import plugin_pods
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    DRA,
    KUBECONFIG,
    Data,
    KubectlError,
    by_kubeconfig,
    condition,
    has_kubectl,
    knows,
    listed,
    run,
    use,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_quantities import extended
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact

DOCUMENTATION = r"""
module: k3s_observe
short_description: What the cluster knows, and what a pod on each node says
description: Changes nothing.
options:
  kubeconfig: {type: path, default: '', description: 'Run kubectl of this computer with it, not that of K3s.'}
  selectors:
    description:
      Label selectors of pods in kube-system. The command runs in one pod per node.
      If it fails in a pod of the first selector, it runs in a pod of the next selector.
    type: list
    elements: str
    required: true
  command: {type: list, elements: str, required: true, description: What is run in them.}
"""

RETURN = r"""
nodes: {type: list, elements: dict, description: 'Name, labels, state and extended resources of each node.'}
pods:
  description:
    Of each pod that asks for extended resources namespace, name, node, phase and requests.
    C(allocated) has the resources of the containers that run together. C(unseen_by) is a scheduler other than
    the default one that has not tried to schedule the pod.
  type: list
  elements: dict
gpu_plugins:
  description:
    Of each pod of NVIDIA's device plugin C(node), namespace and name of its DaemonSet, C(release) of its
    chart, and whether the GPU C(operator) has made it.
  type: list
  elements: dict
devices: {type: list, elements: dict, description: Each device of a ResourceSlice.}
claims: {type: list, elements: dict, description: 'Each claim with allocated devices, and its pods.'}
tokens: {type: list, elements: dict, description: Tokens of C(k3s token create) with their end in RFC 3339.}
answers: {type: dict, description: 'By node C(stdout), or C(problem) where there is none.'}
"""

Resources = Dict[str, int]

NAMESPACE = "kube-system"
DEFAULT_SCHEDULER = "default-scheduler"
# Kubernetes' cluster-bootstrap/token/api.
TOKEN_TYPE = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type, no token
# Answers awaited at the same time; each is a kubectl of about 40 MB on the server.
CONCURRENT_ANSWERS = 8
ANSWER_SECONDS = 15


def node_facts(node: Data) -> Data:
    """Facts of a node."""
    ready = condition(node, "Ready")
    return {
        "name": node["metadata"]["name"],
        "labels": node["metadata"].get("labels") or {},
        "ready": ready.get("status") == "True",
        "message": ready.get("message", ""),
        "capacity": extended(node["status"].get("capacity")),
        "allocatable": extended(node["status"].get("allocatable")),
    }


def limits(container: Data) -> Resources:
    """Extended resources of a container; their requests are the same."""
    return extended((container.get("resources") or {}).get("limits"))


def stays(container: Data) -> bool:
    """True for an init container that goes on beside the others."""
    return container.get("restartPolicy") == "Always"


def add(one: Resources, other: Resources) -> Resources:
    """The sums by name."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in set(one) | set(other)}


def requests(pod: Data) -> Resources:
    """Extended resources that a pod takes from its node: devices of init containers are used again."""
    most: Resources = {}
    beside: Resources = {}
    for container in pod["spec"].get("initContainers") or []:
        needed = add(beside, limits(container))
        most = {name: max(most.get(name, 0), needed.get(name, 0)) for name in set(most) | set(needed)}
        if stays(container):
            beside = needed
    running = allocated(pod)
    return {name: max(most.get(name, 0), running.get(name, 0)) for name in set(most) | set(running)}


def allocated(pod: Data) -> Resources:
    """Extended resources of the containers that run together; kubelets list only these."""
    total: Resources = {}
    for container in pod["spec"].get("initContainers") or []:
        if stays(container):
            total = add(total, limits(container))
    for container in pod["spec"]["containers"]:
        total = add(total, limits(container))
    return total


def unseen_by(pod: Data) -> Optional[str]:
    """The pod's scheduler if it has not tried to schedule the pod; None for the default scheduler."""
    named = pod["spec"].get("schedulerName") or DEFAULT_SCHEDULER
    waits = pod["status"].get("phase") == "Pending" and not pod["spec"].get("nodeName")
    # A scheduler that finds no node for a pod says so there (as the API server does of one that is gated).
    if named == DEFAULT_SCHEDULER or not waits or condition(pod, "PodScheduled"):
        return None
    return named


def pod_facts(pod: Data) -> Data:
    """Facts of a pod."""
    return {
        "namespace": pod["metadata"]["namespace"],
        "name": pod["metadata"]["name"],
        "node": pod["spec"].get("nodeName", ""),
        "phase": pod["status"].get("phase", ""),
        "requests": requests(pod),
        "allocated": allocated(pod),
        "unseen_by": unseen_by(pod),
    }


def attribute(value: Data) -> Any:
    """The one value that an attribute of a device has."""
    return next(iter(value.values()), None)


def device_facts(resource_slice: Data) -> List[Data]:
    """Facts of the devices of a slice."""
    spec = resource_slice["spec"]
    return [
        {
            "node": spec.get("nodeName", ""),
            "driver": spec["driver"],
            "pool": spec["pool"]["name"],
            "name": device["name"],
            "attributes": {name: attribute(one) for name, one in (device.get("attributes") or {}).items()},
            "capacity": {name: one["value"] for name, one in (device.get("capacity") or {}).items()},
            "taints": [
                "{}={}:{}".format(taint["key"], taint.get("value", ""), taint["effect"])
                for taint in device.get("taints") or []
            ],
        }
        for device in spec.get("devices") or []
    ]


def claim_facts(claim: Data) -> Optional[Data]:
    """Facts of a claim; None if nothing was allocated to it."""
    status = claim.get("status") or {}
    given = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    if not given:
        return None
    return {
        "namespace": claim["metadata"]["namespace"],
        "name": claim["metadata"]["name"],
        "pods": [user["name"] for user in status.get("reservedFor") or []],
        "devices": [
            {
                "driver": one["driver"],
                "pool": one["pool"],
                "name": one["device"],
                "consumed": one.get("consumedCapacity") or {},
            }
            for one in given
        ],
    }


def allocation() -> Tuple[List[Data], List[Data]]:
    """Devices of slices, and claims, where the server knows them."""
    if not knows(DRA):
        return [], []
    items = listed("resourceslices,resourceclaims", "--all-namespaces")
    devices = [one for item in items if item["kind"] == "ResourceSlice" for one in device_facts(item)]
    claims = [claim_facts(item) for item in items if item["kind"] == "ResourceClaim"]
    return devices, [claim for claim in claims if claim]


def bootstrap_tokens() -> List[Data]:
    """Tokens that expire, which are Secrets."""
    return listed("secrets", "--namespace=" + NAMESPACE, "--field-selector=type=" + TOKEN_TYPE)


def token_facts(secret: Data) -> Dict[str, str]:
    """Facts of a token, without its secret."""
    data = {key: base64.b64decode(text or "").decode() for key, text in (secret.get("data") or {}).items()}
    return {
        "id": data.get("token-id", ""),
        "ends": data.get("expiration", ""),
        "description": data.get("description", ""),
    }


def running_pods(pods: List[Data]) -> Dict[str, str]:
    """By node the name of a pod that runs and is not about to end."""
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["name"]
        for pod in pods
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def answer(node: Data, pods: List[str], command: List[str], timeout: float) -> Dict[str, str]:
    """What the first of these pods on a node says that says anything.

    Nodes that are not Ready are skipped, because the command would only time out.
    """
    if not node["ready"]:
        return {"problem": "the node is not Ready: {}".format(node["message"])}
    problem = "no pod of the device plugin runs there"
    for pod in pods:
        try:
            said = run("--namespace=" + NAMESPACE, "exec", pod, "--", *command, timeout=timeout)
            return {"stdout": redact(said)}
        except KubectlError as error:
            problem = str(error).partition(": ")[2]  # without the command, which is always the same
    return {"problem": problem}


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            **KUBECONFIG,
            "selectors": {"type": "list", "elements": "str", "required": True},
            "command": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    use(module.params)
    if not by_kubeconfig() and not has_kubectl():
        module.fail_json(msg="There is no K3s on this server yet: playbooks/site.yml installs it.")
    try:
        items = listed("nodes,pods", "--all-namespaces")
        pods_of = [
            running_pods(listed("pods", "--namespace=" + NAMESPACE, "--selector=" + selector))
            for selector in module.params["selectors"]
        ]
        devices, claims = allocation()
        tokens = [] if by_kubeconfig() else bootstrap_tokens()
        nodes = [node_facts(item) for item in items if item["kind"] == "Node"]
        running = [item for item in items if item["kind"] == "Pod"]
        pods, plugins = [pod_facts(item) for item in running], plugin_pods(running)
    except (KubectlError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    with ThreadPoolExecutor(CONCURRENT_ANSWERS) as threads:
        asking = {
            node["name"]: threads.submit(
                answer,
                node,
                [of_node[node["name"]] for of_node in pods_of if node["name"] in of_node],
                module.params["command"],
                ANSWER_SECONDS,
            )
            for node in nodes
        }
        answers = {name: future.result() for name, future in asking.items()}
    module.exit_json(
        changed=False,
        nodes=nodes,
        pods=[pod for pod in pods if pod["requests"]],
        gpu_plugins=plugins,
        devices=devices,
        claims=claims,
        tokens=[token_facts(secret) for secret in tokens],
        answers=answers,
    )


if __name__ == "__main__":
    main()
