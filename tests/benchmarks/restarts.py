# SPDX-License-Identifier: Apache-2.0
"""Restart a virtual board, or a part of it, again and again; count the pods that lose the GPU, print a table.

On the board are a bare pod, a Deployment, a StatefulSet and a Job, and each has a part of the GPU. A GPU that
is not shared has the bare pod alone. The board is a node with plain Kubernetes 1.36 and containerd, or with
K3s and Docker. It is its own server, or an agent of a server that stays up.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.acceptance.cluster import Cluster, sleeper, wait_until
from tests.acceptance.playbook import run_playbook
from tests.lab import board, kubernetes_1_36, lab, nvidia_plugin
from tests.lab.board import Board
from tools.engine import docker
from tools.process import say

LAB = "restarts"
REFUSED = "UnexpectedAdmissionError"
PLUGIN = "tegra-device-plugin"
KINDS = ("pod", "deployment", "statefulset", "job")
# Settings, what each pod asks for, and the kinds that there is a part for.
SHARING: dict[str, tuple[dict[str, Any], dict[str, int], Sequence[str]]] = {
    "time-slicing": (
        {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
        {"nvidia.com/gpu": 1},
        KINDS,
    ),
    "units": ({"units": {"memoryTotal": "4Gi"}}, {"jetson-k3s.github.io/gpu-memory": 4}, KINDS),
    "exclusive": ({}, {"nvidia.com/gpu": 1}, KINDS[:1]),
}
RUN_SECONDS = 300
LIVE_RESTORE = ("docker", "info", "--format={{.LiveRestoreEnabled}}")


@dataclass(frozen=True)
class Scenario:
    """A cluster, its board with the workloads, and the GPU that each of them has."""

    cluster: Cluster
    node: Board
    limits: dict[str, int]
    kinds: Sequence[str]

    @property
    def kubelet(self) -> str:
        """Its unit."""
        if self.cluster.runtime_class:
            return kubernetes_1_36.unit_name("kubelet")
        return "k3s" if self.node == self.cluster.boards[0] else "k3s-agent"

    def registrations(self) -> int:
        """How often the plugin's pod has registered so far."""
        return self.cluster.registrations(self.node.name, *self.limits)

    def offers_all(self) -> bool:
        """Whether the node has all of its GPU, with a pod of the plugin that runs."""
        ((resource, asked),) = self.limits.items()
        offered = self.cluster.allocatable(resource)[self.node.name]
        return offered >= asked * len(self.kinds) and self.cluster.plugin_pod(self.node.name) is not None


def workload(kind: str, scenario: Scenario) -> dict[str, Any]:
    """An object whose pod has a share of the node's GPU until it is deleted."""
    runtime = scenario.cluster.runtime_class
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": scenario.node.name},
        **({"runtimeClassName": runtime} if runtime else {}),
        "terminationGracePeriodSeconds": 0,
        "containers": [sleeper({"resources": {"limits": scenario.limits}})],
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
    """The container of each kind, of those that run."""
    found = {}
    for pod in cluster.get("pods", "--selector=workload")["items"]:
        for status in pod["status"].get("containerStatuses", []):
            if "running" in status["state"]:
                found[pod["metadata"]["labels"]["workload"]] = str(status["containerID"])
    return found


def refused(cluster: Cluster) -> dict[str, str]:
    """Kind of each pod that the kubelet has refused so far, by the pod's uid.

    Events tell of a StatefulSet's pod as well, which its controller deletes immediately.
    """
    events = cluster.get("events", f"--field-selector=reason={REFUSED}")["items"]
    pods = (event["involvedObject"] for event in events)
    return {pod["uid"]: pod["name"].partition("-")[0] for pod in pods}


def pull_the_plug(scenario: Scenario) -> None:
    docker("kill", scenario.node.container)
    board.start(scenario.node)


def reboot(scenario: Scenario) -> None:
    docker("stop", scenario.node.container)
    board.start(scenario.node)


def restart_kubelet(scenario: Scenario) -> None:
    before = scenario.registrations()
    scenario.node.exec("systemctl", "restart", scenario.kubelet)
    wait_until(lambda: scenario.registrations() > before, "the plugin registers again", RUN_SECONDS)


def renew_plugin(scenario: Scenario) -> None:
    """Its DaemonSet makes another pod. Meanwhile the other instance serves."""
    before = scenario.cluster.plugin_pod(scenario.node.name)
    scenario.cluster.kubectl("delete", "pod", str(before), "--namespace=kube-system")
    wait_until(
        lambda: scenario.cluster.plugin_pod(scenario.node.name) not in (before, None),
        "another pod",
        RUN_SECONDS,
    )


def kill_plugin(scenario: Scenario) -> None:
    """Its pod's process, whose container the kubelet starts again. Meanwhile the other instance serves."""
    pod = str(scenario.cluster.plugin_pod(scenario.node.name))
    before = scenario.cluster.plugin_restarts(pod)
    scenario.node.exec(
        "sh",
        "-c",
        "kill -KILL $(pgrep -af 'tegra_device_plugin [r]un' | grep -v -e --stand-by | cut -d ' ' -f 1)",
    )
    wait_until(
        lambda: scenario.cluster.plugin_restarts(pod) > before,
        "the plugin's container starts again",
        RUN_SECONDS,
    )


def restart_docker(scenario: Scenario) -> None:
    # More than three times in a minute, as nobody does.
    scenario.node.exec("systemctl", "reset-failed", "docker")
    scenario.node.exec("systemctl", "restart", "docker")


def set_live_restore(node: Board, value: bool) -> None:
    path = "/etc/docker/daemon.json"
    settings = json.loads(node.exec("sh", "-c", 'cat "$1" || echo {}', "sh", path))
    changed = json.dumps(settings | {"live-restore": value})
    node.exec("sh", "-c", 'printf %s "$1" > "$2"', "sh", changed, path)
    node.exec("systemctl", "reload", "docker")
    wait_until(lambda: node.exec(*LIVE_RESTORE) == str(value).lower(), "live-restore", RUN_SECONDS)


def restart_docker_alone(scenario: Scenario) -> None:
    """Containers outlive an engine with this setting."""
    set_live_restore(scenario.node, True)
    try:
        restart_docker(scenario)
    finally:
        set_live_restore(scenario.node, False)


def always(_scenario: Scenario) -> bool:
    return True


def never(_scenario: Scenario) -> bool:
    return False


@dataclass(frozen=True)
class Cause:
    """Something that happens to a board, and whether the container of every pod ends by it."""

    happens: Callable[[Scenario], None]
    ends_pods: Callable[[Scenario], bool] = never


CAUSES = {
    "power-cut": Cause(pull_the_plug, always),
    "reboot": Cause(reboot, always),
    "kubelet": Cause(restart_kubelet),
    "plugin": Cause(renew_plugin),
    "plugin-killed": Cause(kill_plugin),
    "docker": Cause(restart_docker, lambda scenario: scenario.cluster.runtime_class is None),
    "docker-live-restore": Cause(restart_docker_alone),
}


def without_gpu(node: Board) -> int:
    """How many containers of workloads run that have no GPU."""
    processes = "pgrep -f 'import signal; signal[.]pause' | sed 's|.*|/proc/&/environ|'"
    return len(node.exec("sh", "-c", f"grep -Lz ^NVIDIA_VISIBLE_DEVICES= $({processes}) || true").split())


@dataclass(frozen=True)
class Outcome:
    """What became of the pods."""

    refused: Counter[str]
    """By the kubelet."""
    ended: Counter[str]
    """Without need."""
    without_gpu: int
    seconds: float
    """Until all ran."""


def observed(scenario: Scenario, cause: Cause) -> Outcome:
    """Let it happen; return what became of the pods when all run that can, and the node has its GPU."""
    cluster = scenario.cluster
    before, known = running(cluster), refused(cluster)
    begin, ends_pods = time.monotonic(), cause.ends_pods(scenario)
    cause.happens(scenario)

    def lost() -> Counter[str]:
        return Counter(kind for uid, kind in refused(cluster).items() if uid not in known)

    def settled() -> bool:
        now, gone = running(cluster), lost()
        # Nobody makes a bare pod again.
        wanted = [kind for kind in scenario.kinds if kind != "pod" or not gone["pod"]]
        if ends_pods:
            return all(now.get(kind, before[kind]) != before[kind] for kind in wanted)
        return all(kind in now for kind in wanted) and scenario.offers_all()

    wait_until(settled, "all kinds run", RUN_SECONDS)
    taken, found = time.monotonic() - begin, lost()
    now = running(cluster)
    ended = Counter(kind for kind in scenario.kinds if not ends_pods and now.get(kind) != before[kind])
    if found["pod"]:
        cluster.kubectl("delete", "pod", "pod")
        cluster.apply(workload("pod", scenario))
    wait_until(lambda: len(running(cluster)) == len(scenario.kinds), "all kinds run", RUN_SECONDS)
    return Outcome(found, ended, without_gpu(scenario.node), taken)


def settings(sharing: str, engine: str) -> str:
    """The playbooks' option for such nodes."""
    config = {"version": "v1"} | ({"sharing": SHARING[sharing][0]} if SHARING[sharing][0] else {})
    variables = {
        "k3s_container_runtime": engine,
        "gpu_device_plugin_config": config,
        "nvidia_docker_strict": sharing == "units",
    }
    return f"--extra-vars={json.dumps(variables)}"


@contextmanager
def boards_of(engine: str, agents: int, variables: str) -> Iterator[list[Board]]:
    """Boards with the engine, whose node takes pods and offers its GPU."""
    if engine == "docker":
        with lab.fresh(LAB, [lab.DEFAULT_TYPE] * (1 + agents)) as boards:
            run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify", variables).checked()
            yield boards
        return
    with kubernetes_1_36.fresh(LAB, agents=agents) as boards:
        for one in boards:
            board.set_toolkit(one, "1.18.0")  # JetPack 6's own ignores strict mode
        run_playbook(LAB, "site.yml", "--tags=gpu_device_plugin", variables).checked()
        yield boards


def install_nvidias(scenario: Scenario, config: dict[str, Any]) -> None:
    """Replace our plugin by NVIDIA's."""
    cluster, name = scenario.cluster, scenario.node.name
    scenario.node.exec("docker", "rm", "--force", PLUGIN)
    cluster.kubectl("label", "node", name, "jetson-k3s.github.io/device-plugin-")
    wait_until(lambda: cluster.plugin_pod(name) is None, "no pod of our plugin", RUN_SECONDS)
    nvidia_plugin.load(scenario.node)
    cluster.apply(*nvidia_plugin.manifests(name, {"version": "v1", "sharing": config}))
    cluster.kubectl(
        "rollout", "status", "--namespace=kube-system", f"daemonset/{nvidia_plugin.NAME}", "--timeout=120s"
    )


@contextmanager
def prepared(
    sharing: str,
    *,
    agent: bool,
    engine: str = "containerd",
    nvidia: bool = False,
) -> Iterator[Scenario]:
    """A cluster with our plugin or NVIDIA's, and the board with the workloads."""
    config, limits, kinds = SHARING[sharing]
    with boards_of(engine, int(agent), settings(sharing, engine)) as boards:
        cluster = Cluster(boards, runtime_class="nvidia" if engine == "containerd" else None)
        scenario = Scenario(cluster, boards[-1], limits, kinds)
        if nvidia:
            install_nvidias(scenario, config)
        for kind in kinds:
            cluster.apply(workload(kind, scenario))
        wait_until(lambda: len(running(cluster)) == len(kinds), "all kinds run", RUN_SECONDS)
        yield scenario


def series(scenario: Scenario, cause: str, times: int) -> str:
    """One line of the table."""
    outcomes: list[Outcome] = []
    for number in range(times):
        now = observed(scenario, CAUSES[cause])
        outcomes.append(now)
        said = f"refused {dict(now.refused) or 'nothing'}, ended {dict(now.ended) or 'nothing'}"
        said += f", without GPU {now.without_gpu}"
        say(f"{cause} {number + 1} of {times}: {said}, {now.seconds:.0f} s")

    def counted(what: str) -> str:
        each: list[Counter[str]] = [getattr(one, what) for one in outcomes]
        pods = ", ".join(f"{kind} {number}" for kind, number in sum(each, Counter[str]()).items())
        return f"{what} pods {sum(map(bool, each))} times ({pods or 'none'})"

    seconds = [one.seconds for one in outcomes]
    return (
        f"{times} times: {counted('refused')}; {counted('ended')}; "
        f"{sum(one.without_gpu for one in outcomes)} ran without their GPU; "
        f"all ran after {statistics.median(seconds):.0f} s ({min(seconds):.0f} to {max(seconds):.0f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.restarts", description=__doc__)
    parser.add_argument("causes", nargs="*", metavar="CAUSE", help=f"of {', '.join(CAUSES)} (default: all)")
    parser.add_argument("--times", type=int, default=10, help="how often each of them happens (default: 10)")
    parser.add_argument("--sharing", choices=SHARING, default="time-slicing")
    parser.add_argument("--agent", action="store_true", help="take an agent, whose server stays up")
    parser.add_argument(
        "--docker", action="store_true", help="with K3s and Docker instead of Kubernetes 1.36 and containerd"
    )
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--alone", action="store_true", help="without the instance that stands by")
    others.add_argument(
        "--nvidia", action="store_true", help="with NVIDIA's plugin instead of ours (power-cut and reboot)"
    )
    options = parser.parse_args()
    if unknown := [cause for cause in options.causes if cause not in CAUSES]:
        parser.error(f"{', '.join(unknown)}: not one of {', '.join(CAUSES)}")
    engine = "docker" if options.docker else "containerd"
    with prepared(options.sharing, agent=options.agent, engine=engine, nvidia=options.nvidia) as scenario:
        if options.alone:
            scenario.node.exec("docker", "rm", "--force", PLUGIN)
        for cause in options.causes or CAUSES:
            sys.stdout.write(f"{cause}, {series(scenario, cause, options.times)}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
