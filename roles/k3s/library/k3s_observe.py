#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Nodes, the pods that hold extended resources, and what one pod on each node says. Changes nothing.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_kubectl import K3S, KubectlError, condition, get, run

DOCUMENTATION = r"""
module: k3s_observe
short_description: What the cluster knows, and what a pod on each node says
author: The jetson-k3s authors
options:
  selector:
    description: Label selector of the pods in kube-system of which one on each node is asked.
    type: str
    required: true
  command:
    description: What is run in them.
    type: list
    elements: str
    required: true
  timeout:
    description: Seconds for one pod's answer.
    type: int
    default: 15
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
nodes:
  description: Of each node name, labels, ready, message; capacity and allocatable of its extended resources.
  returned: success
  type: list
  elements: dict
pods:
  description: Of each pod that asks for extended resources namespace, name, node, phase and requests.
  returned: success
  type: list
  elements: dict
answers:
  description: By node C(stdout), or C(problem) where there is none.
  returned: success
  type: dict
"""

NAMESPACE = "kube-system"
# Answers awaited at the same time; each is a kubectl of about 40 MB on the server.
AT_ONCE = 8


def extended(quantities):
    """Of a resource list the extended ones: those with a domain."""
    return {name: int(quantity) for name, quantity in (quantities or {}).items() if "/" in name}


def node_facts(node):
    """What is told about a node."""
    ready = condition(node, "Ready")
    return {
        "name": node["metadata"]["name"],
        "labels": node["metadata"].get("labels") or {},
        "ready": ready.get("status") == "True",
        "message": ready.get("message", ""),
        "capacity": extended(node["status"].get("capacity")),
        "allocatable": extended(node["status"].get("allocatable")),
    }


def requests(pod):
    """Extended resources that a pod takes from its node: devices of init containers are used again."""
    spec = pod["spec"]
    limits = [extended((one.get("resources") or {}).get("limits")) for one in spec["containers"]]
    before = [
        extended((one.get("resources") or {}).get("limits")) for one in spec.get("initContainers") or []
    ]
    names = {name for one in limits + before for name in one}
    return {
        name: max([sum(one.get(name, 0) for one in limits)] + [one.get(name, 0) for one in before])
        for name in names
    }


def pod_facts(pod):
    """What is told about a pod."""
    return {
        "namespace": pod["metadata"]["namespace"],
        "name": pod["metadata"]["name"],
        "node": pod["spec"].get("nodeName", ""),
        "phase": pod["status"].get("phase", ""),
        "requests": requests(pod),
    }


def speakers(pods):
    """By node the name of a pod that runs and is not about to end."""
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["name"]
        for pod in pods
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def answer(node, pod, command, timeout):
    """What the pod on this node says. A node that is not Ready is not asked: that would only take time."""
    if not node["ready"]:
        return {"problem": "the node is not Ready: {}".format(node["message"])}
    if pod is None:
        return {"problem": "no pod of the device plugin runs there"}
    try:
        return {"stdout": run("--namespace=" + NAMESPACE, "exec", pod, "--", *command, timeout=timeout)}
    except KubectlError as error:
        return {"problem": str(error).partition(": ")[2]}  # without the command, which is always the same


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "selector": {"type": "str", "required": True},
            "command": {"type": "list", "elements": "str", "required": True},
            "timeout": {"type": "int", "default": 15},
        },
        supports_check_mode=True,
    )
    if not os.path.exists(K3S):
        module.fail_json(msg="There is no K3s on this server yet: playbooks/site.yml installs it.")
    try:
        items = get("nodes,pods", "--all-namespaces")["items"]
        asked = get("pods", "--namespace=" + NAMESPACE, "--selector=" + module.params["selector"])["items"]
    except (KubectlError, OSError) as error:
        module.fail_json(msg=str(error))
    nodes = [node_facts(item) for item in items if item["kind"] == "Node"]
    pods = [pod_facts(item) for item in items if item["kind"] == "Pod"]
    pod_of = speakers(asked)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        asking = {
            node["name"]: threads.submit(
                answer, node, pod_of.get(node["name"]), module.params["command"], module.params["timeout"]
            )
            for node in nodes
        }
        answers = {name: future.result() for name, future in asking.items()}
    module.exit_json(
        changed=False, nodes=nodes, pods=[pod for pod in pods if pod["requests"]], answers=answers
    )


if __name__ == "__main__":
    main()
