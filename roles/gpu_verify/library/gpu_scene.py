#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Prove on one node that pods get the GPU and that it is given to one at a time.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import datetime
import json
import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_kubectl import (
    KubectlError,
    WatchTimeoutError,
    condition,
    get,
    is_true,
    run,
    wait_until,
)

DOCUMENTATION = r"""
module: gpu_scene
short_description: deviceQuery and the concurrency scene on one node
description:
  - A pod runs deviceQuery to the end. Then one pod holds each GPU the node offers while one pod more has to
    wait, and that one runs as soon as a holder ends. All happens in a namespace of its own, removed again.
  - The result is a report, also when the node does not pass; the caller decides.
author: The jetson-k3s authors
options:
  node:
    description: The node's name.
    type: str
    required: true
  image:
    description: An image on the node that has deviceQuery, sh, ls and sleep.
    type: str
    required: true
  command:
    description: What runs deviceQuery in the image.
    type: list
    elements: str
    required: true
  runtime_class:
    description: RuntimeClass of the pods; none where nvidia is the engine's default runtime.
    type: str
  strict:
    description: Whether a pod that only says C(NVIDIA_VISIBLE_DEVICES=all) must not get the GPU.
    type: bool
    default: false
  resource:
    description: The extended resource.
    type: str
    default: nvidia.com/gpu
  timeout:
    description: Seconds for each step.
    type: int
    default: 120
attributes:
  check_mode:
    support: none
"""

RETURN = r"""
report:
  description: >-
    C(ok), C(failures), C(allocatable), C(device_query), C(scene), C(device_nodes), C(in_use_by), and in
    strict mode C(uninvited_device_nodes).
  returned: always
  type: dict
"""

# Device nodes through which CUDA reaches a Tegra GPU: nvmap and one of nvgpu's or the nvidia driver's.
GPU_NODES = re.compile(r"^/dev/(nvmap|nvhost-[a-z-]*gpu|nvgpu/.+|nvidia[0-9]+|nvidiactl)$")
MULTIPROCESSORS = re.compile(r"\(\s*0*(\d+)\)\s+Multiprocessors,\s+\(\s*0*(\d+)\)")
# A holder tells what it sees and then lives until it is told to end.
HOLD = ("sh", "-c", "find /dev -type c; echo ready; until [ -e /dev/shm/end ]; do sleep 0.2; done")
LOOK = ("sh", "-c", "find /dev -type c; echo ready")
END = ("sh", "-c", ": > /dev/shm/end")
SIMULATED = "SIMULATED"  # how the lab's images mark their output


class SceneError(Exception):
    """A step did not go as it must; the text says which and why."""


def pod(name, params, command):
    """Manifest of a pod that is scheduled to the node and asks for one GPU."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            # By label, not by nodeName: the scheduler is part of what is proven.
            "nodeSelector": {"kubernetes.io/hostname": params["node"]},
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": params["image"],
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "resources": {"limits": {params["resource"]: 1}},
                }
            ],
        },
    }
    if params["runtime_class"]:
        manifest["spec"]["runtimeClassName"] = params["runtime_class"]
    return manifest


def uninvited_pod(name, params, command):
    """The same for a pod that does not ask but says that it sees all devices, as many images do."""
    manifest = pod(name, params, command)
    container = manifest["spec"]["containers"][0]
    del container["resources"]
    container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return manifest


def parse_device_query(text):
    """What NVIDIA's deviceQuery says about its first device, and whether a simulation says it."""

    def find(pattern):
        match = re.search(pattern, text, re.MULTILINE)
        return match.group(1) if match else None

    processors = MULTIPROCESSORS.search(text)
    return {
        "result": find(r"^Result = (\w+)"),
        "device": find(r'^Device 0: "([^"]*)"'),
        "compute_capability": find(r"CUDA Capability Major/Minor version number:\s+(\S+)"),
        "multiprocessors": int(processors.group(1)) if processors else None,
        "cores_per_multiprocessor": int(processors.group(2)) if processors else None,
        "simulated": SIMULATED in text,
    }


def gpu_nodes(listing):
    """GPU device nodes in the output of `find /dev -type c`."""
    return sorted(line for line in listing.splitlines() if GPU_NODES.match(line))


def requested(item, resource):
    """How many of the resource a pod holds; a finished pod holds nothing."""
    if item["status"].get("phase") in ("Succeeded", "Failed"):
        return 0
    return sum(
        int(container.get("resources", {}).get("limits", {}).get(resource, 0))
        for container in item["spec"]["containers"]
    )


def finished(item):
    """Has the pod ended, well or not?"""
    return item["status"].get("phase") in ("Succeeded", "Failed")


def running(item):
    """Does the pod run (or has it failed, which there is no use waiting through)?"""
    return finished(item) or is_true(item, "Ready")


def refused(resource):
    """Has the scheduler said that the node has none of the resource left?"""

    def check(item):
        scheduled = condition(item, "PodScheduled")
        return scheduled.get("status") == "False" and "Insufficient " + resource in scheduled.get(
            "message", ""
        )

    return check


def why(item):
    """Why a pod is where it is, in one line for people."""
    if item is None:
        return "the pod never appeared"
    status = item["status"]
    states = [
        entry
        for container in status.get("containerStatuses", [])
        for entry in container.get("state", {}).values()
    ]
    words = [
        status.get("phase"),
        status.get("reason"),
        status.get("message"),
        condition(item, "PodScheduled").get("message"),
    ]
    words += [state.get(key) for state in states for key in ("reason", "message")]
    return ": ".join(word for word in words if word)


class Scene:
    """One node's proof in its own namespace, written down as it happens."""

    def __init__(self, params):
        self.params = params
        self.namespace = "gpu-verify-" + params["node"].replace(".", "-")
        self.report = {"ok": False, "failures": [], "scene": []}

    def note(self, text):
        """Write down what happened, with the time in UTC."""
        now = datetime.datetime.utcnow().isoformat(timespec="milliseconds") + "Z"
        self.report["scene"].append({"at": now, "event": text})

    def open(self):
        """Make the namespace, after removing what a cut-off run left."""
        self.close()
        run("create", "namespace", self.namespace)
        # Pods are refused until the namespace has its service account.
        self._wait(lambda item: True, "the service account", "serviceaccount", "default")

    def close(self):
        """Remove the namespace and wait until it is gone."""
        run(
            "delete",
            "namespace",
            self.namespace,
            "--ignore-not-found",
            "--timeout={}s".format(self.params["timeout"]),
        )

    def _wait(self, satisfied, what, *argv):
        try:
            return wait_until(satisfied, what, self.params["timeout"], "--namespace=" + self.namespace, *argv)
        except WatchTimeoutError as timeout:
            detail = why(timeout.last) if argv[0] == "pod" else "it never appeared"
            raise SceneError("{} ({})".format(timeout, detail)) from timeout

    def start(self, name, command, manifest_of=pod):
        """Create a pod that runs a command."""
        manifest = manifest_of(name, self.params, command)
        run("create", "--namespace=" + self.namespace, "--filename=-", stdin=json.dumps(manifest))
        self.note("{} created".format(name))

    def wait(self, name, satisfied, what):
        """Wait for a pod; SceneError says what it did instead."""
        return self._wait(satisfied, what, "pod", name)

    def wait_running(self, name):
        """Wait until a pod runs."""
        item = self.wait(name, running, "{} running".format(name))
        if not is_true(item, "Ready"):
            raise SceneError("{} does not run: {}".format(name, why(item)))
        self.note("{} Running".format(name))

    def end(self, name):
        """Let a holder end by itself."""
        run("exec", name, "--namespace=" + self.namespace, "--", *END)
        item = self.wait(name, finished, "{} ending".format(name))
        self.note("{} ended: {}".format(name, item["status"]["phase"]))

    def log(self, name, last_line=None):
        """A pod's output, waited for until it has the last line."""
        deadline = time.monotonic() + self.params["timeout"]
        while True:
            text = run("logs", name, "--namespace=" + self.namespace)
            if last_line is None or last_line in text.splitlines() or time.monotonic() > deadline:
                return text
            time.sleep(0.2)

    def device_query(self):
        """Run deviceQuery to its end."""
        name = "devicequery"
        self.start(name, self.params["command"])
        item = self.wait(name, finished, "deviceQuery ending")
        text = self.log(name)
        result = parse_device_query(text)
        result.update({"phase": item["status"]["phase"], "output": text.splitlines()})
        self.report["device_query"] = result
        self.note("deviceQuery {}: Result = {}".format(result["phase"], result["result"]))
        if result["phase"] != "Succeeded" or result["result"] != "PASS":
            raise SceneError(
                "deviceQuery did not pass: {}; its output ends with {!r}".format(
                    why(item), text.strip()[-200:]
                )
            )
        run("delete", "pod", name, "--namespace=" + self.namespace)

    def strictness(self):
        """A pod that has not asked runs to its end without a GPU device node."""
        name = "uninvited"
        self.start(name, LOOK, uninvited_pod)
        item = self.wait(name, finished, "{} ending".format(name))
        text = self.log(name)
        nodes = gpu_nodes(text)
        self.report["uninvited_device_nodes"] = nodes
        if nodes:
            raise SceneError(
                "a pod that did not ask for {} got {}: strict mode is not in force on this board".format(
                    self.params["resource"], ", ".join(nodes)
                )
            )
        if "ready" not in text.splitlines():
            raise SceneError("the pod that did not ask could not look: {}".format(why(item)))
        self.note("a pod that says NVIDIA_VISIBLE_DEVICES=all and asks for nothing has no GPU device node")
        run("delete", "pod", name, "--namespace=" + self.namespace)

    def concurrency(self, count):
        """`count` pods hold all GPUs, one more waits until a holder ends."""
        holders = ["pod{}".format(number) for number in range(1, count + 1)]
        waiter = "pod{}".format(count + 1)
        for name in holders:
            self.start(name, HOLD)
        for name in holders:
            self.wait_running(name)
        nodes = gpu_nodes(self.log(holders[0], "ready"))
        self.report["device_nodes"] = nodes
        if not nodes:
            raise SceneError(
                "{} runs, but no GPU device node is inside it: is nvidia the default runtime?".format(
                    holders[0]
                )
            )
        self.note("{} has {} GPU device nodes, among them {}".format(holders[0], len(nodes), nodes[-1]))
        self.start(waiter, HOLD)
        item = self.wait(
            waiter,
            lambda item: refused(self.params["resource"])(item) or running(item),
            "{} Pending".format(waiter),
        )
        if not refused(self.params["resource"])(item):
            raise SceneError(
                "{} did not have to wait although {} held every GPU".format(waiter, ", ".join(holders))
            )
        self.note("{} Pending: {}".format(waiter, condition(item, "PodScheduled")["message"]))
        # Only overlap proves exclusiveness: the holders must still be there now.
        for name in holders:
            if not is_true(get("pod", name, "--namespace=" + self.namespace) or {}, "Ready"):
                raise SceneError("{} ended before {} was seen waiting".format(name, waiter))
        self.end(holders[0])
        self.wait_running(waiter)
        # All of them end, so that the namespace goes at once.
        for name in [*holders[1:], waiter]:
            self.end(name)

    def play(self):
        """The whole proof; the report is the result, whatever happens."""
        node = get("node", self.params["node"])
        if node is None:
            raise SceneError("the cluster has no node {}".format(self.params["node"]))
        resource = self.params["resource"]
        count = int(node["status"].get("allocatable", {}).get(resource, 0))
        self.report["allocatable"] = count
        if count == 0:
            raise SceneError("the node offers no {}".format(resource))
        self.open()  # first: what a cut-off run left here holds no GPU afterwards
        self.report["in_use_by"] = in_use_by(self.params["node"], resource)
        if self.report["in_use_by"]:
            self.note(
                "GPU in use by {}: the scene was not played".format(", ".join(self.report["in_use_by"]))
            )
            return
        self.device_query()
        if self.params["strict"]:
            self.strictness()
        self.concurrency(count)


def in_use_by(node, resource):
    """Pods (namespace/name) that hold the resource on a node."""
    pods = get("pods", "--all-namespaces", "--field-selector=spec.nodeName=" + node) or {"items": []}
    return [
        "{namespace}/{name}".format(**item["metadata"])
        for item in pods["items"]
        if requested(item, resource) > 0
    ]


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "command": {"type": "list", "elements": "str", "required": True},
            "runtime_class": {"type": "str"},
            "strict": {"type": "bool", "default": False},
            "resource": {"type": "str", "default": "nvidia.com/gpu"},
            "timeout": {"type": "int", "default": 120},
        }
    )
    scene = Scene(module.params)
    try:
        scene.play()
    except (SceneError, KubectlError, OSError) as error:
        scene.report["failures"].append(str(error))
    try:
        scene.close()
    except (KubectlError, OSError) as error:
        scene.report["failures"].append("cleaning up: {}".format(error))
    scene.report["ok"] = not scene.report["failures"]
    module.exit_json(changed=False, report=scene.report)


if __name__ == "__main__":
    main()
