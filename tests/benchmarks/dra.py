# SPDX-License-Identifier: Apache-2.0
"""How long a claim's pod takes to run, beside one of the device plugin on the same cluster; print a table.

With `--start-beside DIR` it only compares two starts of the driver, from the process to the kubelet's
registration: this checkout's and the one whose `plugin` directory is DIR, one after the other. Without it,
one virtual board with Kubernetes 1.36: first with the device plugin, then with the DRA driver. Pods are made
one after the other, and each is waited for by `kubectl wait`, which is in every figure. The ratios tell
something.
"""

import argparse
import asyncio
import json
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.arm64 import build
from tests.acceptance import claims
from tests.acceptance.cluster import RESOURCE, Cluster
from tests.acceptance.playbook import run_playbook
from tests.conformance import fake_dra_kubelet
from tests.conformance.dra_node import DraNode
from tests.conformance.fake_api import FakeApi
from tests.conformance.fake_dra_kubelet import FakeDraKubelet
from tests.lab import kubernetes_1_36
from tests.lab.board import Board
from tools.process import say

LAB = "benchmark-dra"
SLEEP = ("python3.11", "-c", "import signal; signal.pause()")
TICKS_PER_SECOND = 100  # USER_HZ, of all architectures here
BEGIN, END = "begin ", "end "


@dataclass(frozen=True)
class Process:
    """A daemon at rest: its memory in MiB, and its share of a processor in percent.

    The working set is what the kubelet counts and `kubectl top pod` shows. What is resident has programs and
    libraries as well, which the kernel reads again from the disk when it has needed the room.
    """

    working_set: float
    resident: float
    cpu: float


def deploy(api: str) -> None:
    """Bring the board to one of the two; SystemExit when that fails."""
    say(f"benchmark: {api}")
    chosen = {"k3s_container_runtime": "containerd", "gpu_device_plugin_api": api}
    run = run_playbook(LAB, "site.yml", "--tags=gpu_device_plugin", f"--extra-vars={json.dumps(chosen)}")
    if run.returncode != 0:
        raise SystemExit(f"site.yml failed\n{run.why}")


def by_limit(name: str, node: str, runtime_class: str | None) -> list[dict[str, Any]]:
    """Return a pod that asks for an extended resource."""
    pod = claims.pod(name, build.reference(), claim=None, node=node, command=SLEEP)
    pod["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: 1}}
    if runtime_class:
        pod["spec"]["runtimeClassName"] = runtime_class
    return [pod]


def by_claim(name: str, node: str) -> list[dict[str, Any]]:
    """Return a claim and a pod that has it."""
    return [
        claims.claim(name),
        claims.pod(name, build.reference(), claim=name, node=node, command=SLEEP),
    ]


def seconds_to_run(board: Board, objects: list[dict[str, Any]]) -> float:
    """Create objects, the last one a pod; return the seconds until that is Ready. Then they go."""
    text = shlex.quote("\n---\n".join(map(json.dumps, objects)))
    pod = f"pod/{objects[-1]['metadata']['name']}"
    said = board.exec(
        "sh",
        "-c",
        f"echo {BEGIN}$(date +%s.%N); printf %s {text} | k3s kubectl create -f - >/dev/null && "
        f"k3s kubectl wait --for=condition=Ready --timeout=60s {pod} >/dev/null && echo {END}$(date +%s.%N)",
    )
    stamps = dict(line.split() for line in said.splitlines())
    for one in reversed(objects):
        name = f"{one['kind'].lower()}/{one['metadata']['name']}"
        board.exec("k3s", "kubectl", "delete", name, "--wait=true", "--grace-period=1")
    return float(stamps[END.strip()]) - float(stamps[BEGIN.strip()])


def at_rest(cluster: Cluster, pod: str | None, command: str, seconds: float) -> Process:
    """Watch a daemon on the first board that has nothing to do, the one of this pod."""
    board = cluster.boards[0]
    pid = board.exec("pgrep", "--oldest", "--full", f"tegra_device_plugin {command}").strip()

    def ticks() -> int:
        return sum(map(int, board.exec("cat", f"/proc/{pid}/stat").rpartition(")")[2].split()[11:13]))

    before, begin = ticks(), time.monotonic()
    time.sleep(seconds)
    used = (ticks() - before) / TICKS_PER_SECOND / (time.monotonic() - begin)
    (resident,) = re.findall(
        r"^Rss:\s+(\d+) kB$", board.exec("cat", f"/proc/{pid}/smaps_rollup"), re.MULTILINE
    )
    return Process(cluster.working_set(board.name, pod) / 2**20, int(resident) / 1024, used * 100)


def prepared_ms(cluster: Cluster) -> float:
    """Return what one call to prepare has taken on average, by the driver's own metrics."""
    pod = claims.driver_pod(cluster, cluster.boards[0].name)
    text = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/kube-system/pods/{pod}:9400/proxy/metrics")

    def value(sample: str) -> float:
        found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
        if not found:
            raise SystemExit(f"the driver's metrics have no {sample}")
        return float(found[1])

    calls = value('tegra_dra_driver_prepares_total{result="prepared"}')
    return value('tegra_dra_driver_call_seconds_total{call="prepare"}') / calls * 1e3


def table(taken: Mapping[str, list[float]], daemons: Mapping[str, Process], prepare_ms: float) -> str:
    """Give a line for each way to ask, and one for each daemon."""
    medians = {name: statistics.median(values) for name, values in taken.items()}
    base = next(iter(medians.values()))
    lines = [f"{'created to Ready':<34}{'median':>9}{'worst':>9}{'ratio':>8}"]
    lines += [
        f"{name:<34}{median:>7.2f} s{max(taken[name]):>7.2f} s{median / base:>8.2f}"
        for name, median in medians.items()
    ]
    lines += ["", f"one call to prepare: {prepare_ms:.1f} ms", ""]
    lines += [f"{'at rest':<34}{'working set':>15}{'resident':>12}{'processor':>12}"]
    lines += [
        f"{name:<34}{one.working_set:>11.1f} MiB{one.resident:>8.1f} MiB{one.cpu:>10.2f} %"
        for name, one in daemons.items()
    ]
    return "\n".join(lines)


def measured(pods: int, rest_seconds: float) -> str:
    """Bring the lab up, measure, take it down."""
    with kubernetes_1_36.fresh(LAB) as board:
        cluster = Cluster([board])
        taken: dict[str, list[float]] = {}
        daemons = {}

        def take(what: str, objects: list[dict[str, Any]]) -> None:
            taken[what] = [seconds_to_run(board, objects) for _ in range(pods + 1)][1:]  # the first warms up

        deploy("device-plugin")
        take("limits, by the device plugin", by_limit("plugin", board.name, "nvidia"))
        daemons["device plugin"] = at_rest(cluster, cluster.plugin_pod(board.name), "run", rest_seconds)
        deploy("dra")
        take("claim", by_claim("claim", board.name))
        take("limits, by the DRA driver", by_limit("bridge", board.name, None))
        daemons["DRA driver"] = at_rest(cluster, claims.driver_pod(cluster, board.name), "dra", rest_seconds)
        return table(taken, daemons, prepared_ms(cluster))


async def starts(other: Path, own: Path, rounds: int) -> str:
    """Start both drivers in turn on a simulated board; the first start of each is not counted."""
    fake_dra_kubelet._LOOK_SECONDS = 0.001
    taken: dict[Path, list[float]] = {other: [], own: []}
    for _ in range(rounds + 1):
        for plugin, milliseconds in taken.items():
            os.environ["PYTHONPATH"] = str(plugin)
            milliseconds.append(await start_to_registered() * 1e3)
    before, now = (sorted(one[1:]) for one in taken.values())
    lines = [f"{'start to registered':<22}{'min':>9}{'median':>12}"]
    lines += [
        f"{name:<22}{one[0]:>6.0f} ms{statistics.median(one):>9.0f} ms"
        for name, one in (("before", before), ("now", now))
    ]
    ratios = now[0] / before[0], statistics.median(now) / statistics.median(before)
    return "\n".join((*lines, f"{'ratio':<22}{ratios[0]:>9.2f}{ratios[1]:>12.2f}"))


async def start_to_registered() -> float:
    """Return the seconds from the start of a driver, imports included, to its registration."""
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as place:
        async with FakeApi() as api, FakeDraKubelet(Path(place, "kubelet")) as kubelet:
            node = DraNode(Path(place), api, kubelet)
            begin = time.perf_counter()
            async with node.start():
                await kubelet.until_registered()
                return time.perf_counter() - begin


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.dra", description=__doc__)
    parser.add_argument("--pods", type=int, default=20, help="how many pods of each kind (default: 20)")
    parser.add_argument("--rest", type=float, default=60, help="seconds to watch each daemon (default: 60)")
    parser.add_argument("--start-beside", type=Path, help="a `plugin` directory of an earlier version")
    parser.add_argument("--rounds", type=int, default=10, help="starts of each driver (default: 10)")
    options = parser.parse_args()
    if options.start_beside:
        paths = options.start_beside.resolve(), Path("plugin").resolve()
        sys.stdout.write(asyncio.run(starts(*paths, options.rounds)) + "\n")
        return 0
    sys.stdout.write(measured(options.pods, options.rest) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
