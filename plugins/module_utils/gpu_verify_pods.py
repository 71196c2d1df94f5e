# SPDX-License-Identifier: Apache-2.0
"""Pods on one node, in a namespace of their own: create, watch, end and delete them.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import hashlib
import json
import re
import time
from typing import Callable, List, Match, Optional, Pattern, Sequence

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_claims as claims
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_runner import CheckFailed, Record
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    Data,
    KubectlError,
    WatchTimeoutError,
    condition,
    get,
    is_true,
    run,
    wait_until,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_quantities import integer

# Device nodes through which CUDA reaches a Tegra GPU: nvmap and one of nvgpu's or the nvidia driver's.
GPU_NODES = re.compile(r"^/dev/(nvmap|nvhost-[a-z-]*gpu|nvgpu/.+|nvidia[0-9]+|nvidiactl)$")
# What the plugin's image does by CUDA: device_query.py and compute.py of its commands. The first lists
# the GPU's properties, the second runs a kernel. A holder then runs until it is ended.
PLUGIN = ("python3.11", "-m", "tegra_device_plugin")
DEVICE_QUERY = (*PLUGIN, "device-query")
COMPUTE = (*PLUGIN, "compute")
COMPUTED = re.compile(r"^computed \d+ numbers on .*$", re.MULTILINE)
HOLD = (*COMPUTE, "--hold")
END = ("python3.11", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")
# Exit codes of that: the process ended, or SIGKILL ended it with its container, whichever is faster.
ENDED = (0, 128 + 9)
# The pods of an interrupted run end after this time.
POD_DEADLINE_SECONDS = 900
# Of a namespace: a DNS label (RFC 1123).
LONGEST_NAME = 63
# States of a container that do not change without a change of the pod, so the check does not wait.
HOPELESS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RunContainerError",
)
# Reasons of containers whose program never ran: of dockershim and cri-dockerd, and of containerd.
NEVER_RAN = ("ContainerCannotRun", "StartError")


def pod(
    name: str,
    params: Data,
    command: Sequence[str],
    limit: Optional[int] = None,
    security: Optional[Data] = None,
) -> Data:
    """Manifest of a pod that is scheduled to the node and requests `limit` devices, or its share."""
    container: Data = {
        "name": "main",
        "image": params["image"],
        "imagePullPolicy": "Never",
        "command": list(command),
    }
    spec: Data = {
        # By label, not by nodeName: the check includes the scheduler.
        "nodeSelector": {"kubernetes.io/hostname": params["node"]},
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": POD_DEADLINE_SECONDS,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if params["api"] == claims.DRA:
        claims.add_claim(spec, limit or params["share"])
    else:
        container["resources"] = {"limits": {params["resource"]: limit or params["share"]}}
    if params["runtime_class"]:
        spec["runtimeClassName"] = params["runtime_class"]
    if security:
        spec["securityContext"] = security
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def holder(name: str, params: Data, limit: Optional[int] = None) -> Data:
    """A pod that computes on the GPU and keeps running with its memory allocated."""
    return pod(name, params, HOLD, limit=limit)


def uninvited_pod(name: str, params: Data, command: Sequence[str]) -> Data:
    """The same pod without a request, with NVIDIA_VISIBLE_DEVICES=all as in many images."""
    manifest = pod(name, params, command)
    manifest["spec"].pop("resourceClaims", None)
    container = manifest["spec"]["containers"][0]
    del container["resources"]
    container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return manifest


def gpu_nodes(listing: str) -> List[str]:
    """GPU device nodes in a listing of device nodes."""
    return sorted(line for line in listing.splitlines() if GPU_NODES.match(line))


def finished(item: Data) -> bool:
    """Has the pod succeeded or failed?"""
    return item["status"].get("phase") in ("Succeeded", "Failed")


def states(item: Data) -> List[Data]:
    """The states of a pod's containers."""
    return [
        state
        for container in item["status"].get("containerStatuses", [])
        for state in container.get("state", {}).values()
    ]


def ended(item: Data) -> bool:
    """Has the pod ended, or is it gone?"""
    return not item or finished(item)


def never_ran(item: Data) -> bool:
    """Has the pod ended because its program could not be started?"""
    return any(state.get("reason") in NEVER_RAN for state in states(item))


def settled(item: Data) -> bool:
    """Has the pod ended, or is its container in a state that does not change?"""
    return finished(item) or any(state.get("reason") in HOPELESS for state in states(item))


def running(item: Data) -> bool:
    """Is the pod Ready, or settled?"""
    return settled(item) or is_true(item, "Ready")


def none_left(params: Data) -> str:
    """The scheduler's message if all devices of the node are allocated."""
    return claims.NONE_LEFT if params["api"] == claims.DRA else "Insufficient " + params["resource"]


def refused(words: str) -> Callable[[Data], bool]:
    """A test whether the scheduler has refused a pod with this message."""

    def check(item: Data) -> bool:
        scheduled = condition(item, "PodScheduled")
        return scheduled.get("status") == "False" and words in scheduled.get("message", "")

    return check


def why(item: Optional[Data]) -> str:
    """Phase, reasons and messages of a pod, in one line."""
    if item is None:
        return "the pod never appeared"
    status = item["status"]
    words = [
        status.get("phase"),
        status.get("reason"),
        status.get("message"),
        condition(item, "PodScheduled").get("message"),
    ]
    words += [state.get(key) for state in states(item) for key in ("reason", "message")]
    return ": ".join(word for word in words if word)


def last_words(text: str) -> str:
    """The end of a program's output, in one line."""
    lines = text.strip().splitlines()
    return 'it says: "{}"'.format(lines[-1]) if lines else "it says nothing"


def warning(events: Sequence[Data], name: str) -> str:
    """The newest failure of a pod among events (FailedCreatePodSandBox, Failed, ...), '' without one."""
    failures = [
        event
        for event in events
        if event.get("reason", "").startswith("Failed") and event["involvedObject"].get("name") == name
    ]
    failures.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    return "{reason}: {message}".format(**failures[-1]) if failures else ""


def namespace_name(prefix: str, node: str) -> str:
    """The name of a node's namespace. A node's name may be longer than that of a namespace, and has dots."""
    name = prefix + node.replace(".", "-")
    if len(name) <= LONGEST_NAME:
        return name
    return "{}-{}".format(name[: LONGEST_NAME - 9], hashlib.sha256(node.encode("utf-8")).hexdigest()[:8])


class Namespace:
    """The namespace of one node's checks. `params` are the module's: node, image, resource, timeout, ..."""

    def __init__(self, params: Data, prefix: str = "gpu-verify-") -> None:
        self.params = params
        self.name = namespace_name(prefix, params["node"])

    def open(self, manifests: Sequence[Data] = ()) -> None:
        """Make the namespace with these objects in it, after removing the objects of an interrupted run."""
        self.close()
        run("create", "namespace", self.name)
        # Pods are refused until the namespace has its service account.
        self._wait(lambda item: True, "the service account", "serviceaccount", "default")
        for manifest in manifests:
            self._create(manifest)

    def close(self) -> None:
        """Delete the namespace and wait until the GPU is free."""
        # Pods first, each by itself: of pods that go together, API servers before 1.21 give a running one the
        # grace of one that has ended, none, and its containers outlive it (kubernetes/kubernetes#100101).
        self.clear()
        try:
            run("delete", "namespace", self.name, "--ignore-not-found", self._timeout())
        except KubectlError:
            # Kubernetes ends a namespace when all APIs of the cluster answer, also that of a metrics-server
            # which has not started yet. Then it goes by itself.
            if not (get("namespace", self.name) or {}).get("metadata", {}).get("deletionTimestamp"):
                raise

    def clear(self) -> None:
        """Delete all pods and wait until the GPU is free."""
        run("delete", "pods", "--all", "--namespace=" + self.name, "--grace-period=1", self._timeout())

    def start(self, record: Record, manifest: Data) -> None:
        """Create a pod."""
        self._create(manifest)
        record.note("{} created".format(manifest["metadata"]["name"]))

    def wait(self, name: str, satisfied: Callable[[Data], object], what: str) -> Data:
        """Wait for a pod; CheckFailed has the pod's state."""
        return self._wait(satisfied, what, "pod", name)

    def wait_end(self, record: Record, name: str) -> str:
        """Wait until a pod has ended by itself; return its phase."""
        item = self.wait(name, settled, "{} ending".format(name))
        if not finished(item) or never_ran(item):
            raise CheckFailed("{} does not start: {}".format(name, self.story(name, item)))
        phase: str = item["status"]["phase"]
        record.note("{} ended: {}".format(name, phase))
        return phase

    def wait_refused(self, record: Record, name: str, holders: str) -> None:
        """Wait until the scheduler refuses a pod because the holders have every GPU."""
        no_more = refused(none_left(self.params))
        item = self.wait(name, lambda item: no_more(item) or running(item), "{} Pending".format(name))
        if not no_more(item):
            raise CheckFailed("{} was not Pending although {} had every GPU".format(name, holders))
        record.note("{} Pending: {}".format(name, condition(item, "PodScheduled")["message"]))

    def end(self, record: Record, name: str) -> None:
        """Let a holder end by itself."""
        self.run(name, *END, accept=ENDED)
        self.wait_end(record, name)

    def run(self, name: str, *command: str, accept: Sequence[int] = (0,)) -> str:
        """Run a command in a pod; return its output. KubectlError has the end of its output."""
        return run("exec", name, "--namespace=" + self.name, "--", *command, accept=accept)

    def wait_output(self, record: Record, name: str, said: Pattern[str], what: str) -> Match[str]:
        """Wait until a pod's output matches; return the match. `what` is the pod's task, for errors."""
        item = self.wait(name, running, "{} running".format(name))
        if not (is_true(item, "Ready") or finished(item)) or never_ran(item):
            raise CheckFailed("{} does not start: {}".format(name, self.story(name, item)))
        record.note("{} {}".format(name, item["status"]["phase"]))
        self.log(name, lambda text: said.search(text) or ended(self.get(name)))
        text = self.log(name)  # again: the pod may have ended after more output
        match = said.search(text)
        if match is None:
            raise CheckFailed(
                "{} could not {} ({}): {}".format(name, what, why(self.get(name) or None), last_words(text))
            )
        record.note("{}: {}".format(name, match.group(0)))
        return match

    def computed(self, record: Record, name: str) -> str:
        """Wait until a holder has computed on the GPU; return its output."""
        return self.wait_output(record, name, COMPUTED, "compute on the GPU").string

    def get(self, name: str) -> Data:
        """A pod as it is now, {} if it is gone."""
        return get("pod", name, "--namespace=" + self.name) or {}

    def events(self) -> List[Data]:
        """The namespace's events."""
        found = get("events", "--namespace=" + self.name) or {"items": []}
        events: List[Data] = found["items"]
        return events

    def log(self, name: str, complete: Optional[Callable[[str], object]] = None) -> str:
        """A pod's output. Waits until `complete`, a test of the text, is true, or until the timeout."""
        deadline = time.monotonic() + self.params["timeout"]
        while True:
            text = run("logs", name, "--namespace=" + self.name)
            if complete is None or complete(text) or time.monotonic() > deadline:
                return text
            time.sleep(0.2)

    def story(self, name: str, item: Optional[Data]) -> str:
        """State of a pod in one line, with its last failure among the events if the pod has no message."""
        if item and any(state.get("message") for state in states(item)):
            return why(item)
        return "; ".join(part for part in (why(item), warning(self.events(), name)) if part)

    def _wait(self, satisfied: Callable[[Data], object], what: str, *argv: str) -> Data:
        try:
            return wait_until(satisfied, what, self.params["timeout"], "--namespace=" + self.name, *argv)
        except WatchTimeoutError as timeout:
            detail = self.story(argv[1], timeout.last) if argv[0] == "pod" else "it never appeared"
            raise CheckFailed("{} ({})".format(timeout, detail)) from timeout

    def _create(self, manifest: Data) -> None:
        run("create", "--namespace=" + self.name, "--filename=-", stdin=json.dumps(manifest))

    def _timeout(self) -> str:
        return "--timeout={}s".format(self.params["timeout"])


def requested(item: Data, resource: str) -> int:
    """The number of devices allocated to a pod; 0 for a finished pod."""
    if finished(item):
        return 0
    return sum(
        integer(container.get("resources", {}).get("limits", {}).get(resource, "0"))
        for container in item["spec"]["containers"]
    )


def holders(params: Data) -> List[str]:
    """Pods (namespace/name) that use the node's resource."""
    node, resource = params["node"], params["resource"]
    if params["api"] == claims.DRA:
        return claims.claimants(node)
    pods = get("pods", "--all-namespaces", "--field-selector=spec.nodeName=" + node) or {"items": []}
    return [
        "{namespace}/{name}".format(**item["metadata"])
        for item in pods["items"]
        if requested(item, resource) > 0
    ]
