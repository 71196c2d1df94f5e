# SPDX-License-Identifier: Apache-2.0
"""Boot a virtual board again and again, count the pods that the kubelet refuses, and print a table.

The board is a node with plain Kubernetes 1.36 and containerd. It is its own server, or an agent of a server
that stays up. On it are a bare pod, a Deployment, a StatefulSet and a Job, and each has a part of the GPU.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.acceptance.cluster import Cluster, sleeper, wait_until
from tests.acceptance.playbook import run_playbook
from tests.lab import board, kubernetes_1_36
from tests.lab.board import Board
from tools.engine import docker
from tools.process import say

LAB = "boots"
REFUSED = "UnexpectedAdmissionError"
PLUGIN = "tegra-device-plugin"
# Settings, and what the pod of each kind asks for.
SHARING: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "time-slicing": (
        {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
        {"nvidia.com/gpu": 1},
    ),
    "units": ({"units": {"memoryTotal": "4Gi"}}, {"jetson-k3s.github.io/gpu-memory": 1024}),
}
KINDS = ("pod", "deployment", "statefulset", "job")
RUN_SECONDS = 300


def workload(kind: str, node: str, limits: dict[str, int]) -> dict[str, Any]:
    """An object whose pod has a share of the node's GPU until it is deleted."""
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "runtimeClassName": "nvidia",
        "terminationGracePeriodSeconds": 0,
        "containers": [sleeper({"resources": {"limits": limits}})],
    }
    labels = {"workload": kind}
    template = {"metadata": {"labels": labels}, "spec": spec}
    selector = {"selector": {"matchLabels": labels}, "template": template}
    apps = {"apiVersion": "apps/v1", "metadata": {"name": kind}}
    match kind:
        case "pod":
            return {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": kind, "labels": labels},
                "spec": spec,
            }
        case "deployment":
            return {**apps, "kind": "Deployment", "spec": {"replicas": 1, **selector}}
        case "statefulset":
            return {**apps, "kind": "StatefulSet", "spec": {"replicas": 1, "serviceName": kind, **selector}}
    job = {"backoffLimit": 1000, "template": {**template, "spec": {**spec, "restartPolicy": "OnFailure"}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": kind}, "spec": job}


def running(cluster: Cluster) -> dict[str, str]:
    """When the container of each kind was started, of those that run."""
    found = {}
    for pod in cluster.get("pods", "--selector=workload")["items"]:
        for status in pod["status"].get("containerStatuses", []):
            if since := status["state"].get("running"):
                found[pod["metadata"]["labels"]["workload"]] = str(since["startedAt"])
    return found


def refused(cluster: Cluster) -> dict[str, str]:
    """Kind of each pod that the kubelet has refused so far, by the pod's uid.

    Events tell of a StatefulSet's pod as well, which its controller deletes immediately.
    """
    events = cluster.get("events", f"--field-selector=reason={REFUSED}")["items"]
    pods = (event["involvedObject"] for event in events)
    return {pod["uid"]: pod["name"].partition("-")[0] for pod in pods}


def boot(cluster: Cluster, node: Board, limits: dict[str, int], *, cut: bool) -> tuple[Counter[str], float]:
    """Boot the board; give what was refused, and the seconds until all kinds ran that can run again."""
    before, known = running(cluster), refused(cluster)
    docker("kill" if cut else "stop", node.container)
    begin = time.monotonic()
    board.start(node)

    def lost() -> Counter[str]:
        return Counter(kind for uid, kind in refused(cluster).items() if uid not in known)

    def settled() -> bool:
        now, gone = running(cluster), lost()
        # Nobody makes a bare pod again.
        wanted = [kind for kind in KINDS if kind != "pod" or not gone["pod"]]
        return all(now.get(kind, before[kind]) != before[kind] for kind in wanted)

    wait_until(settled, "all kinds run again", RUN_SECONDS)
    taken, found = time.monotonic() - begin, lost()
    if found["pod"]:
        cluster.kubectl("delete", "pod", "pod")
        cluster.apply(workload("pod", node.name, limits))
    wait_until(lambda: len(running(cluster)) == len(KINDS), "all kinds run", RUN_SECONDS)
    return found, taken


@contextmanager
def prepared(sharing: str, *, agent: bool) -> Iterator[tuple[Cluster, Board]]:
    """A cluster with the plugin, and the board with the workloads."""
    config, limits = SHARING[sharing]
    settings = {
        "k3s_container_runtime": "containerd",
        "gpu_device_plugin_config": {"version": "v1", "sharing": config},
    }
    with kubernetes_1_36.fresh(LAB, agents=int(agent)) as boards:
        cluster, node = Cluster(boards), boards[-1]
        run_playbook(
            LAB, "site.yml", "--tags=gpu_device_plugin", f"--extra-vars={json.dumps(settings)}"
        ).checked()
        for kind in KINDS:
            cluster.apply(workload(kind, node.name, limits))
        wait_until(lambda: len(running(cluster)) == len(KINDS), "all kinds run", RUN_SECONDS)
        yield cluster, node


def series(cluster: Cluster, node: Board, limits: dict[str, int], boots: int, *, cut: bool) -> str:
    """One line of the table."""
    lost: Counter[str] = Counter()
    seconds, with_refusals = [], 0
    for number in range(boots):
        now, taken = boot(cluster, node, limits, cut=cut)
        lost += now
        with_refusals += bool(now)
        seconds.append(taken)
        say(f"boot {number + 1} of {boots}: refused {dict(now) or 'nothing'}, all ran after {taken:.0f} s")
    refusals = ", ".join(f"{kind} {lost[kind]}" for kind in KINDS)
    return (
        f"{with_refusals} of {boots} boots refused pods ({refusals}); "
        f"all ran after {statistics.median(seconds):.0f} s ({min(seconds):.0f} to {max(seconds):.0f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.boots", description=__doc__)
    parser.add_argument(
        "--boots", type=int, default=10, help="how often each series boots the board (default: 10)"
    )
    parser.add_argument("--sharing", choices=SHARING, default="time-slicing")
    parser.add_argument("--agent", action="store_true", help="boot an agent, whose server stays up")
    options = parser.parse_args()
    lines = []
    with prepared(options.sharing, agent=options.agent) as (cluster, node):
        for plugin in ("DaemonSet and the instance that stands by", "DaemonSet alone"):
            if plugin == "DaemonSet alone":
                node.exec("docker", "rm", "--force", PLUGIN)
            for how, cut in (("power cut", True), ("reboot", False)):
                found = series(cluster, node, SHARING[options.sharing][1], options.boots, cut=cut)
                lines.append(f"{plugin}, {how}: {found}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
