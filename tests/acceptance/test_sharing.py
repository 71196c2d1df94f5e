# SPDX-License-Identifier: Apache-2.0
"""One GPU, several pods, a limit for each: units of time and memory, from the inventory to CUDA's answer.

The real kubelet, plugin and limit library; the GPU's driver is simulated. The tests are one story, in the
order of the file, on one board.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from images.arm64 import build
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import reports_dir, run_playbook
from tests.lab import lab
from tests.lab.board import Board, set_toolkit

pytestmark = pytest.mark.lab

LAB = "units"
CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"
UNITS = {"gpu_device_plugin_config": {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}}
STRICT = {"nvidia_docker_strict": True}
CONFIG_MAP = "tegra-device-plugin"
POD_SECONDS = 90


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    """A board whose GPU is sold in units."""
    lab.down(LAB)
    try:
        (one,) = lab.up(LAB, ["agxorin-jp6"])
        yield one
    finally:
        lab.down(LAB)


@pytest.fixture
def cluster(board: Board) -> Cluster:
    """Its cluster."""
    return Cluster([board])


@dataclass(frozen=True)
class System:
    """Another system's names, as its own examples use them: what two pods ask for that just fit together.

    `limit` is the first one's, in MiB; `env` what it finds in its environment.
    """

    preset: str
    first: dict[str, int]
    second: dict[str, int]
    limit: int
    env: dict[str, str]


TOTAL_MIB = 6144
SYSTEMS = (
    System(
        "hami",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 60},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 40},
        3000,
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "NVIDIA_GPU_MEMORY_LIMIT": "3000"},
    ),
    System(
        "elastic",
        {"elasticgpu.io/gpu-core": 60, "elasticgpu.io/gpu-memory": 3072},
        {"elasticgpu.io/gpu-core": 40, "elasticgpu.io/gpu-memory": 3072},
        3072,
        {},
    ),
    System(
        "qgpu",
        {"tke.cloud.tencent.com/qgpu-core": 60, "tke.cloud.tencent.com/qgpu-memory": 3},
        {"tke.cloud.tencent.com/qgpu-core": 40, "tke.cloud.tencent.com/qgpu-memory": 3},
        3072,
        {},
    ),
    System(
        "vcuda",
        {"tencent.com/vcuda-core": 60, "tencent.com/vcuda-memory": 12},
        {"tencent.com/vcuda-core": 40, "tencent.com/vcuda-memory": 12},
        3072,
        {},
    ),
    System(
        "gpushare",
        {"aliyun.com/gpu-mem": 4},
        {"aliyun.com/gpu-mem": 2},
        4096,
        {"ALIYUN_COM_GPU_MEM_CONTAINER": "4", "ALIYUN_COM_GPU_MEM_DEV": "6"},
    ),
    System(
        "koordinator",
        {"koordinator.sh/gpu-core": 60, "koordinator.sh/gpu-memory-ratio": 60},
        {"koordinator.sh/gpu-core": 40, "koordinator.sh/gpu-memory-ratio": 40},
        3686,
        {},
    ),
)


def ask(cluster: Cluster, name: str, mib: int, limits: Mapping[str, int]) -> None:
    """Create a pod that allocates memory of the GPU and holds it."""
    settings = {
        "command": ["python3.11", "-m", "tegra_device_plugin", "allocate", str(mib), "--hold"],
        "resources": {"limits": limits},
    }
    cluster.create_sleeper(name, cluster.boards[0].name, build.reference(), settings)


def configure(cluster: Cluster, settings: Mapping[str, Any]) -> None:
    """Give the plugin other settings, and let it begin anew: by itself it takes a kubelet's minute."""
    entry = {"data": {"config.yaml": json.dumps(settings)}}
    namespace = "--namespace=kube-system"
    cluster.kubectl(namespace, "patch", "configmap", CONFIG_MAP, f"--patch={json.dumps(entry)}")
    pod = cluster.plugin_pod(cluster.boards[0].name)
    assert pod
    cluster.kubectl(namespace, "delete", "pod", pod)


def said(cluster: Cluster, pod: str, restarts: int = 0) -> str:
    """Wait until a pod's program has said what it got, and give it."""
    lines: list[str] = []

    def heard() -> bool:
        started = cluster.started(pod)
        lines[:] = cluster.kubectl("logs", pod).splitlines()
        return started is not None and started[1] == restarts and any("allocated" in line for line in lines)

    wait_until(heard, f"{pod} has allocated; it says {lines}", POD_SECONDS)
    return next(line for line in lines if line.startswith("allocated"))


def test_units_that_anybody_could_pass_by_are_refused_before_anything_is_touched(board: Board) -> None:
    for settings, finding in ((UNITS, "units-without-strict"), (UNITS | STRICT, "nvidia-runtime-strict")):
        run = run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(settings)}")
        assert run.returncode != 0
        assert f"[error] {finding}" in run.output
        assert run.recap[board.name].changed == 0, run.output


def test_one_run_sells_and_proves_the_units(board: Board, cluster: Cluster) -> None:
    set_toolkit(board, "1.18.0")  # JetPack 6's own ignores strict mode
    run = run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(UNITS | STRICT)}")
    assert run.returncode == 0, run.output
    name = cluster.boards[0].name
    assert (cluster.allocatable(CORE), cluster.allocatable(MEMORY)) == ({name: 100}, {name: 8})
    report = json.loads((reports_dir(LAB) / f"{name}.json").read_text())
    assert (report["gpu"]["resource"], report["gpu"]["limited"]) == (MEMORY, True)
    assert {check["id"]: check["status"] for check in report["checks"]} == {
        "default-runtime": "passed",
        "plugin-registered": "passed",
        "allocatable": "passed",
        "device-query": "passed",
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


def test_who_does_not_fit_waits(cluster: Cluster) -> None:
    ask(cluster, "late", 256, {MEMORY: 2})
    wait_until(
        lambda: f"Insufficient {MEMORY}" in cluster.unschedulable("late"), "late has to wait", POD_SECONDS
    )
    ask(cluster, "busy", 256, {CORE: 1, MEMORY: 1})
    wait_until(lambda: f"Insufficient {CORE}" in cluster.unschedulable("busy"), "busy, too", POD_SECONDS)
    cluster.kubectl("delete", "pod", "late", "busy")


def test_the_node_knows_who_holds_what(cluster: Cluster) -> None:
    pod = cluster.plugin_pod(cluster.boards[0].name)
    assert pod
    plugin = ("python3.11", "-m", "tegra_device_plugin")
    found = cluster.kubectl("--namespace=kube-system", "exec", pod, "--", *plugin, "holders")
    assert set(found.splitlines()) == {
        f"default/greedy main {CORE} 60 devices",
        f"default/greedy main {MEMORY} 3 devices, 768 MiB",
        f"default/modest main {CORE} 40 devices",
        f"default/modest main {MEMORY} 4 devices, 1024 MiB",
    }


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


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: str(system.preset))
def test_pods_of_another_system_run_as_they_are(cluster: Cluster, system: System) -> None:
    units = {"preset": system.preset, "memoryTotal": f"{TOTAL_MIB}Mi"}
    configure(cluster, {"version": "v1", "sharing": {"units": units}})
    name = cluster.boards[0].name
    for resource in system.first:
        wait_until(lambda each=resource: cluster.allocatable(each)[name] > 0, resource, POD_SECONDS)  # type: ignore[misc]
    ask(cluster, "first", TOTAL_MIB, system.first)
    ask(cluster, "second", 64, system.second)
    line = said(cluster, "first")
    assert f"allocated {system.limit // 16 * 16} of {TOTAL_MIB} MiB, then CUDA was out of memory" in line
    assert f"of {system.limit} MiB are free" in line
    assert said(cluster, "second").startswith("allocated 64 of 64 MiB;")
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    env = json.loads(cluster.kubectl("exec", "first", "--", "python3.11", "-c", show))
    assert env.items() >= system.env.items()
    # Nothing is left for a third one.
    ask(cluster, "third", 64, system.second)
    wait_until(lambda: "Insufficient" in cluster.unschedulable("third"), "the third waits", POD_SECONDS)
    cluster.kubectl("delete", "pod", "first", "second", "third")


def test_a_share_that_a_system_does_not_have_is_refused_with_the_reason(cluster: Cluster) -> None:
    units = {"preset": "qgpu", "memoryTotal": "2Gi"}
    configure(cluster, {"version": "v1", "sharing": {"units": units}})
    core, memory = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
    wait_until(lambda: cluster.allocatable(core)[cluster.boards[0].name] == 100, core, POD_SECONDS)
    ask(cluster, "odd", 64, {core: 7, memory: 1})
    wait_until(lambda: cluster.phase("odd") == "Failed", "it is not admitted", POD_SECONDS)
    message = json.loads(cluster.kubectl("get", "pod", "odd", "--output=json"))["status"]["message"]
    assert "7 asked for, but it is given in steps of 5: ask for 5 or 10" in message
    cluster.kubectl("delete", "pod", "odd")


def test_back_to_one_whole_gpu(cluster: Cluster) -> None:
    run = run_playbook(LAB, "site.yml")
    assert run.returncode == 0, run.output
    name = cluster.boards[0].name
    assert (cluster.allocatable(), cluster.allocatable(MEMORY)) == ({name: 1}, {name: 0})
