# SPDX-License-Identifier: Apache-2.0
"""One GPU, several pods, a limit for each: units of time and memory, from the inventory to CUDA's answer.

The real kubelet, plugin and limit library; the GPU's driver is simulated.
"""

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tegra_device_plugin.system.kubernetes import GIB, parse_quantity

from tests.acceptance import hostile_container
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import cluster_status, reports_dir, run_playbook
from tests.acceptance.sharing import POD_SECONDS, ask, said, sell_units
from tests.lab import lab
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "units"
CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"
ELASTIC = "elasticgpu.io/gpu-memory"


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with lab.fresh(LAB, ["agxorin-jp6"]) as (one,):
        yield one


@pytest.fixture
def cluster(board: Board) -> Cluster:
    return Cluster([board])


def test_one_run_sells_and_proves_the_units(board: Board, cluster: Cluster) -> None:
    sell_units(LAB, board).checked()
    name = cluster.boards[0].name
    assert (cluster.allocatable(CORE), cluster.allocatable(MEMORY)) == ({name: 100}, {name: 8})
    (node,) = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    capacity, allocatable = (
        parse_quantity(node["status"][key]["memory"]) for key in ("capacity", "allocatable")
    )
    assert capacity - allocatable == 2 * GIB
    assert node["metadata"]["labels"]["jetson-k3s.github.io/gpu-memory.cgroup-charged"] == "false"
    report = json.loads((reports_dir(LAB) / f"{name}.json").read_text())
    assert (report["gpu"]["resource"], report["gpu"]["limited"]) == (MEMORY, True)
    assert {check["id"]: check["status"] for check in report["checks"]} == {
        "default-runtime": "passed",
        "plugin-registered": "passed",
        "allocatable": "passed",
        "device-query": "passed",
        "cuda-kernel": "passed",
        "non-root": "passed",
        "uninvited": "passed",
        "time-slicing": "passed",
        "limits": "passed",
        "unified-memory": "passed",
        "kubelet-restart": "skipped",
    }


def test_a_pod_that_wants_more_than_its_share_is_out_of_memory(cluster: Cluster) -> None:
    ask(cluster, "greedy", 2048, {CORE: 60, MEMORY: 3})
    assert said(cluster, "greedy") == (
        "allocated 768 of 2048 MiB, then CUDA was out of memory; CUDA says that 0 of 768 MiB are free"
    )


def test_its_neighbour_gets_all_of_his(cluster: Cluster) -> None:
    ask(cluster, "modest", 1024, {CORE: 40, MEMORY: 4})
    assert said(cluster, "modest") == "allocated 1024 of 1024 MiB; CUDA says that 0 of 1024 MiB are free"
    assert cluster.phase("greedy") == "Running"


def test_the_node_knows_who_holds_what(cluster: Cluster) -> None:
    pod = cluster.plugin_pod(cluster.boards[0].name)
    assert pod
    plugin = ("python3.11", "-m", "tegra_device_plugin")
    found = cluster.kubectl("--namespace=kube-system", "exec", pod, "--", *plugin, "allocations")
    # Kubernetes before 1.21 does not tell what is free.
    assert set(found.splitlines()) >= {
        f"default/greedy main: 60 {CORE}, 3 {MEMORY}, weight 60 %, limit 768 MiB, used 768 MiB",
        f"default/modest main: 40 {CORE}, 4 {MEMORY}, weight 40 %, limit 1024 MiB, used 1024 MiB",
    }


def test_a_container_gets_no_door_by_the_files_of_its_limit(cluster: Cluster, board: Board) -> None:
    attack = ("exec", "greedy", "--", "python3.11", "-c", hostile_container.ATTACKS)
    assert json.loads(cluster.kubectl(*attack)) == []
    (container,) = board.exec("docker", "ps", "--quiet", "--filter=name=k8s_main_greedy").split()
    mounts = json.loads(board.exec("docker", "inspect", "--format={{json .Mounts}}", container))
    (ledger,) = (one for one in mounts if one["Destination"] == hostile_container.LEDGER)
    assert (ledger["RW"], hostile_container.of_other_users(board.exec, ledger["Source"])) == (False, [])


def test_status_adds_up_and_tells_who_waits_for_a_scheduler_that_is_not_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    ask(cluster, "foreign", 256, {MEMORY: 1}, schedulerName="hami-scheduler")
    found = cluster_status(LAB, tmp_path)
    (node,) = found["nodes"]
    held = Counter[str]()
    for holder in node["holders"]:
        held.update({one["resource"]: one["count"] for one in holder["held"]})
    assert {one["name"]: one["allocatable"] - one["free"] for one in node["resources"]} == held
    assert held == {CORE: 100, MEMORY: 7}
    assert node["differences"] == []
    assert found["unseen"] == [
        {"namespace": "default", "pod": "foreign", "scheduler": "hami-scheduler", "resources": [MEMORY]}
    ]
    cluster.kubectl("delete", "pod", "foreign")


def test_a_container_that_is_started_again_has_its_whole_share_again(cluster: Cluster, board: Board) -> None:
    (container,) = board.exec("docker", "ps", "--quiet", "--filter=name=k8s_main_greedy").split()
    board.exec("docker", "kill", container)
    assert said(cluster, "greedy", restarts=1).startswith("allocated 768 of 2048 MiB")


def test_a_pod_without_memory_is_not_limited_and_has_no_library(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pod", "modest", "greedy")
    ask(cluster, "timely", 64, {CORE: 10})
    # The simulated GPU has all of the machine's memory.
    assert "allocated 64 of 64 MiB" in said(cluster, "timely")
    board = cluster.boards[0]
    (container,) = board.exec("docker", "ps", "--quiet", "--filter=name=k8s_main_timely").split()
    mounts = board.exec("docker", "inspect", "--format={{json .Mounts}}", container)
    assert "ld.so.preload" not in mounts
    cluster.kubectl("delete", "pod", "timely")


def test_back_to_one_whole_gpu(cluster: Cluster) -> None:
    run_playbook(LAB, "site.yml").checked()
    name = cluster.boards[0].name
    assert (cluster.allocatable(), cluster.allocatable(MEMORY)) == ({name: 1}, {name: 0})


@pytest.fixture
def simulate(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`tegra-device-plugin simulate` on this machine, whose kubectl is the board's; gives what it says."""
    kubectl = tmp_path / "kubectl"
    words = shlex.join(["docker", "exec", "--interactive", board.container, "k3s", "kubectl"])
    kubectl.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = tmp_path / "elastic.yaml"
    config.write_text("version: v1\nsharing: {units: {preset: elastic, memoryTotal: 2Gi}}\n")

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tegra_device_plugin", "simulate", board.name, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    return lambda *arguments: run(*(arguments or (f"--config={config}",)))


def test_a_node_without_a_plugin_simulates_units(cluster: Cluster, simulate: Callable[..., str]) -> None:
    everything = ("--namespace=kube-system", "get", "pods", "--output=name")
    cluster.kubectl("--namespace=kube-system", "delete", "daemonset", "tegra-device-plugin")
    wait_until(lambda: "plugin" not in cluster.kubectl(*everything), "the plugin is gone", POD_SECONDS)
    node = cluster.boards[0].name
    assert f"{node}: simulated: 100 x elasticgpu.io/gpu-core, 2048 x {ELASTIC};" in simulate()
    assert cluster.allocatable(ELASTIC) == {node: 2048}
    sleep = {"command": ["sleep", "infinity"]}
    for pod, mib in (("one", 1024), ("two", 1024), ("three", 1)):
        settings = sleep | {"resources": {"limits": {ELASTIC: mib}}}
        cluster.create_sleeper(pod, node, settings)
    wait_until(lambda: {cluster.phase("one"), cluster.phase("two")} == {"Running"}, "two run", POD_SECONDS)
    wait_until(lambda: f"Insufficient {ELASTIC}" in cluster.unschedulable("three"), "one waits", POD_SECONDS)
    assert "removed: elasticgpu.io/gpu-core" in simulate("--remove")
    assert ELASTIC not in cluster.kubectl("get", "node", node, "--output=jsonpath={.status}")
    assert cluster.phase("one") == "Running"
