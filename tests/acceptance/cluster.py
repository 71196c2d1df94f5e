# SPDX-License-Identifier: Apache-2.0
"""Ask a lab's cluster how it is, past the playbooks that made it."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from images.arm64 import build as plugin
from tests.lab.board import Board
from tests.lab.vm.machine import Machine
from tools.process import ToolError

RESOURCE = "nvidia.com/gpu"
PLUGIN_PODS = "app.kubernetes.io/name=tegra-device-plugin"
POLL_SECONDS = 0.25
# Everything that a needless restart would change.
UNITS = ("docker", "k3s", "k3s-agent", "containerd")


def sleeper(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A container that sleeps until it is ended, in an image that every board has: the plugin's."""
    return {
        "name": "main",
        "image": plugin.reference(),
        "imagePullPolicy": "Never",
        "command": ["python3.11", "-c", "import signal; signal.pause()"],
        **settings,
    }


@dataclass(frozen=True)
class Cluster:
    """The boards of a lab, the first one is the server; and what GPU pods name where containerd runs them."""

    boards: Sequence[Board | Machine]
    runtime_class: str | None = None

    def kubectl(self, *arguments: str) -> str:
        return self.boards[0].exec("k3s", "kubectl", *arguments)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create objects, or change them."""
        # One document: kubectl 1.25 reads no second one in JSON.
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        apply = 'printf %s "$1" | k3s kubectl apply --filename=-'
        self.boards[0].exec("sh", "-c", apply, "sh", text)

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("nodes")["items"]
        return found

    def allocatable(self, resource: str = RESOURCE) -> dict[str, int]:
        """GPUs, or shares of them, that pods can be given, by node."""
        return {
            node["metadata"]["name"]: int(node["status"]["allocatable"].get(resource, 0))
            for node in self.nodes()
        }

    def plugin_image(self) -> str:
        """The image of the plugin's DaemonSet."""
        daemonset = self.get("daemonset", "tegra-device-plugin", "--namespace=kube-system")
        return str(daemonset["spec"]["template"]["spec"]["containers"][0]["image"])

    def kubelets(self) -> dict[str, str]:
        return {
            node["metadata"]["name"]: node["status"]["nodeInfo"]["kubeletVersion"] for node in self.nodes()
        }

    def hold_gpu(self, name: str, node: str) -> None:
        self.create_sleeper(name, node, {"resources": {"limits": {RESOURCE: 1}}})

    def create_sleeper(self, name: str, node: str, settings: Mapping[str, Any], **pod_settings: str) -> None:
        """Create a pod on a node that sleeps until it is deleted; `settings` are its container's."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "terminationGracePeriodSeconds": 0,
                **({"runtimeClassName": self.runtime_class} if self.runtime_class else {}),
                "containers": [sleeper(settings)],
                **pod_settings,
            },
        }
        self.apply(pod)

    def create_jobs(self, **settings: Any) -> None:
        """Create the Deployment `jobs`: one pod, on any node, and wait until it runs.

        `settings` are its container's.
        """
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "jobs"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "jobs"}},
                "template": {
                    "metadata": {"labels": {"app": "jobs"}},
                    "spec": {"terminationGracePeriodSeconds": 1, "containers": [sleeper(settings)]},
                },
            },
        }
        self.apply(deployment)
        self.kubectl("rollout", "status", "deployment/jobs", "--timeout=60s")

    def phase(self, pod: str) -> str:
        return str(self.get("pod", pod)["status"]["phase"])

    def health_in_pod(self, pod: str, given_by: str = RESOURCE) -> list[str]:
        """What a pod's status says of the health of its GPUs (Kubernetes 1.36 and newer)."""
        containers = self.get("pod", pod)["status"].get("containerStatuses", [])
        given = [entry for one in containers for entry in one.get("allocatedResourcesStatus", [])]
        return [one["health"] for entry in given if entry["name"] == given_by for one in entry["resources"]]

    def started(self, pod: str) -> tuple[str, int] | None:
        """When a pod's container was started, and how often again; None if it does not run."""
        status = self.get("pod", pod)["status"]["containerStatuses"][0]
        running = status["state"].get("running")
        return (str(running["startedAt"]), int(status["restartCount"])) if running else None

    def unschedulable(self, pod: str) -> str:
        """Why the scheduler finds no place for a pod; empty when it has one, or before the first try."""
        conditions = self.get("pod", pod)["status"].get("conditions", [])
        return next((str(c.get("message", "")) for c in conditions if c.get("reason") == "Unschedulable"), "")

    def plugin_pod(self, node: str) -> str | None:
        selectors = (
            f"--selector={PLUGIN_PODS}",
            f"--field-selector=spec.nodeName={node},status.phase=Running",
        )
        pods = self.get("pods", "--namespace=kube-system", *selectors)["items"]
        return next(
            (pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]), None
        )

    def registrations(self, node: str, resource: str = RESOURCE) -> int:
        """How often the plugin's pod on a node has registered since it started; 0 without a pod that runs."""
        pod = self.plugin_pod(node)
        log = self.kubectl("--namespace=kube-system", "logs", pod) if pod else ""
        return log.count(f"registered {resource}")

    def plugin_restarts(self, pod: str) -> int:
        """How often the container of a plugin's pod was started again."""
        query = "--output=jsonpath={.status.containerStatuses[0].restartCount}"
        return int(self.kubectl("--namespace=kube-system", "get", "pod", pod, query))


def starts(boards: Sequence[Board | Machine]) -> set[str]:
    """When each service and each running container of the boards was started, an entry for each.

    A restart makes another entry.
    """
    show = ("systemctl", "show", "--property=Id,ActiveEnterTimestampMonotonic,NRestarts,MainPID", *UNITS)
    containers = ("docker", "ps", "--no-trunc", "--format={{.ID}} {{.Names}} {{.CreatedAt}}")
    return {
        f"{one.name}: {entry}"
        for one in boards
        for entry in (*one.exec(*show).split("\n\n"), *one.exec(*containers).splitlines())
    }


def wait_until(
    true: Callable[[], bool], what: str, seconds: float, poll_seconds: float = POLL_SECONDS
) -> float:
    """Wait for something to become true; return the seconds it took. The API server may be restarting."""
    start = time.monotonic()
    answer: object = None
    while time.monotonic() - start < seconds:
        try:
            if true():
                return time.monotonic() - start
        except ToolError as error:
            answer = error
        time.sleep(poll_seconds)
    raise AssertionError(f"not within {seconds:g} s: {what}" + (f" (last error: {answer})" if answer else ""))


_SERVE = "import socket\ns = socket.create_server(('', 8080))\nwhile True: s.accept()[0].sendall(b'hello')"
_WAIT = "import signal; signal.pause()"


def check_network(cluster: Cluster, image: str) -> None:
    """Check that a pod of the first board reaches one of the second, by its address and by a Service.

    `image` is one with a Python that the boards have: the plugin's.
    """
    for pod, program, board in zip(("asker", "server"), (_WAIT, _SERVE), cluster.boards[:2], strict=True):
        spec = {"nodeName": board.name, "terminationGracePeriodSeconds": 0}
        run = ("run", pod, f"--image={image}", "--image-pull-policy=Never", "--restart=Never", "--command")
        cluster.kubectl(*run, f"--overrides={json.dumps({'spec': spec})}", "--", "python3.11", "-c", program)
    cluster.kubectl("expose", "pod", "server", "--port=80", "--target-port=8080")
    try:
        wait_until(
            lambda: all(cluster.phase(pod) == "Running" for pod in ("server", "asker")), "both run", 60
        )
        pod_ip = cluster.kubectl("get", "pod", "server", "--output=jsonpath={.status.podIP}")
        service = cluster.kubectl("get", "service", "server", "--output=jsonpath={.spec.clusterIP}")
        for address, port in ((pod_ip, 8080), (service, 80)):
            wait_until(partial(_answers, cluster, address, port), f"an answer of {address}", 30)
    finally:
        cluster.kubectl("delete", "pod/server", "pod/asker", "service/server")


def _answers(cluster: Cluster, address: str, port: int) -> bool:
    ask = f"import socket; print(socket.create_connection(('{address}', {port}), 5).recv(9).decode())"
    return cluster.kubectl("exec", "asker", "--", "python3.11", "-c", ask).strip() == "hello"
