#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Wait until a node is Ready, keep its labels, wait for what it should offer.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_kubectl import (
    K3S,
    KubectlError,
    WatchTimeoutError,
    condition,
    get,
    is_true,
    run,
    wait_until,
)

LOG_LINES = 15

DOCUMENTATION = r"""
module: k3s_node
short_description: A Ready node with its labels and resources
author: The jetson-k3s authors
options:
  name:
    description: The node.
    type: str
    required: true
  labels:
    description: Labels that it must have, or with null must not have; its other labels are left alone.
    type: dict
    default: {}
  resource:
    description: An extended resource of which it must offer at least one, such as nvidia.com/gpu.
    type: str
  provider:
    description: Label selector of the pods in kube-system that serve it; quoted when it does not come.
    type: str
  timeout:
    description: Seconds to wait.
    type: int
    default: 180
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
allocatable:
  description: The node's allocatable resources.
  returned: success outside check mode
  type: dict
"""


def label_arguments(current, wanted):
    """Arguments of `kubectl label` that are needed to get from the current labels to the wanted ones."""
    return [
        "{}-".format(key) if value is None else "{}={}".format(key, value)
        for key, value in sorted(wanted.items())
        if current.get(key) != (None if value is None else str(value))
    ]


def allocatable(node, resource):
    """How many of an extended resource the node offers to pods."""
    return int((node.get("status", {}).get("allocatable") or {}).get(resource, "0"))


def last_words(selector, node):
    """State and last output of the pods that should serve a resource on this node."""
    pods = get(
        "pods", "--namespace=kube-system", "--selector=" + selector, "--field-selector=spec.nodeName=" + node
    )
    if not pods or not pods["items"]:
        return "No pod with {} runs there.".format(selector)
    words = []
    for pod in pods["items"]:
        name = pod["metadata"]["name"]
        restarts = sum(entry.get("restartCount", 0) for entry in pod["status"].get("containerStatuses", []))
        previous = ["--previous"] if restarts and not is_true(pod, "Ready") else []
        log = run("logs", "--namespace=kube-system", "--tail={}".format(LOG_LINES), name, *previous)
        words.append(
            "Pod {} is {}, restarted {} times; its last output:\n{}".format(
                name, pod["status"]["phase"], restarts, log
            )
        )
    return "\n".join(words)


def explained(selector, node):
    """last_words(), or why there are none."""
    try:
        return last_words(selector, node)
    except KubectlError as error:
        return str(error)


def complaint(node, resource):
    """What is missing at the node, for people."""
    if node is None:
        return "it has not registered"
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        return "it is not Ready: {}".format(ready.get("message", "the kubelet has not reported"))
    return "it is Ready but offers no {}".format(resource)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "labels": {"type": "dict", "default": {}},
            "resource": {"type": "str"},
            "provider": {"type": "str"},
            "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    name, wanted, resource = module.params["name"], module.params["labels"], module.params["resource"]

    try:
        if module.check_mode:
            # The cluster as it is: before the first run there is none to wait for.
            node = get("node", name) if os.path.exists(K3S) else None
            missing = label_arguments(node["metadata"].get("labels", {}) if node else {}, wanted)
            module.exit_json(changed=bool(missing))
        deadline = time.monotonic() + module.params["timeout"]
        node = wait_until(
            lambda node: is_true(node, "Ready"), "Ready", module.params["timeout"], "node", name
        )
        missing = label_arguments(node["metadata"].get("labels", {}), wanted)
        if missing:
            run("label", "--overwrite", "node", name, *missing)
        if resource is not None:
            # After the labels: what serves the resource may be scheduled by them.
            left = max(1, int(deadline - time.monotonic()))
            node = wait_until(lambda node: allocatable(node, resource) >= 1, resource, left, "node", name)
    except WatchTimeoutError as timeout:
        text = "node {}: {} (waited {} s)".format(
            name, complaint(timeout.last, resource), module.params["timeout"]
        )
        if module.params["provider"] and timeout.last is not None:
            text += "\n" + explained(module.params["provider"], name)
        module.fail_json(msg=text)
    except (KubectlError, OSError) as error:
        module.fail_json(msg="node {}: {}".format(name, error))
    module.exit_json(changed=bool(missing), allocatable=node["status"]["allocatable"])


if __name__ == "__main__":
    main()
