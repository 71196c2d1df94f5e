# SPDX-License-Identifier: Apache-2.0
"""One GPU, several pods, a limit for each: units of time and memory, from the inventory to CUDA's answer.

The real kubelet, plugin and limit library; the GPU's driver is simulated. Pods written for another system of
sharing run as they are, and Koordinator's Device is written into a cluster that has its CRD.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.file import read_file
from tegra_device_plugin.config.settings import load_plugin
from tegra_device_plugin.sharing import koordinator
from tegra_device_plugin.sharing.manifests.check import check, rewrite
from tegra_device_plugin.system.kubernetes import GIB, parse_quantity

from images.arm64 import build as plugin
from tests import boards
from tests.acceptance.cluster import Cluster, sleeper, wait_until
from tests.acceptance.playbook import cluster_status, reports_dir, run_playbook
from tests.lab import lab, lab_dir
from tests.lab.board import Board, set_toolkit
from tests.unit.roles.playing import play
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "units"
CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"
UNITS = {"gpu_device_plugin_config": {"version": "v1", "sharing": {"units": {"memoryTotal": "2Gi"}}}}
STRICT = {"nvidia_docker_strict": True}
AGENT = {"gpu_device_plugin_agent": {"enabled": True, "qosPolicy": "per-pod"}}
CONFIG_MAP = "tegra-device-plugin"
POD_SECONDS = 90
KIND = "devices.scheduling.koordinator.sh"
# A role's module is found where the role is named.
PLAYBOOK = """\
- hosts: server
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: observe}
      when: false
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.gpu_device_plugin, tasks_from: offered}
      when: false
    - jetson_k3s.cluster.koordinator_device: {device: "{{ device }}"}
      register: made
    - ansible.builtin.debug: {msg: "changed={{ made.changed }} found={{ made.found }}."}
"""
PUBLISHED = CHECKOUT / "tests/unit/plugin/foreign_manifests/koordinator-metax.yaml"
# Runs in the agent's container, and prints the policies of pods by uid.
READ_POLICIES = """
import asyncio, json
from pathlib import Path
from tegra_device_plugin.agent.pod_policies import read, sockets
from tegra_device_plugin.system.hosttree import HostTree
print(json.dumps(asyncio.run(read(sockets(HostTree(Path("/host")))))))
"""
# As containers see it (plugin/gpu_limit/account.c).
LEDGER = "/run/tegra-gpu-limit/ledger"
NOBODY = "65534"

# Runs in a container of the plugin's image, and prints what has succeeded.
ATTACKS = """
import ctypes, fcntl, json, mmap, os, struct
LIBRARY = "/usr/lib/tegra-gpu-limit/libtegra-gpu-limit.so"
PATHS = ["/run/tegra-gpu-limit/ledger", "/etc/ld.so.preload", LIBRARY]
PROGRAM = b"#!/bin/sh\\nid\\n"
MS_REMOUNT, MS_BIND = 32, 4096
libc = ctypes.CDLL(None, use_errno=True)
def write(path, flags=os.O_RDWR):
    file = os.open(path, flags)
    try: os.write(file, PROGRAM)
    finally: os.close(file)
def write_by_its_descriptor(path):
    file = os.open(path, os.O_RDONLY)
    try: write(f"/proc/self/fd/{file}")
    finally: os.close(file)
def map_it(path):
    file = os.open(path, os.O_RDONLY)
    try: mmap.mmap(file, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)
    finally: os.close(file)
def mount_it_writable(path):
    if libc.mount(None, path.encode(), None, MS_REMOUNT | MS_BIND, None):
        raise OSError(ctypes.get_errno(), "mount")
def unmount(path):
    if libc.umount2(path.encode(), 0):
        raise OSError(ctypes.get_errno(), "umount")
# VFS_CAP_REVISION_2 with CAP_SETUID permitted and effective (linux/capability.h).
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 7, 0, 0, 0)
ATTACKS = {
    "write": write,
    "append": lambda path: write(path, os.O_WRONLY | os.O_APPEND),
    "write by its descriptor": write_by_its_descriptor,
    "map": map_it,
    "grow": lambda path: os.truncate(path, 300 << 20),
    "setuid": lambda path: os.chmod(path, 0o4755),
    "own": lambda path: os.chown(path, 1000, 1000),
    "give capabilities": lambda path: os.setxattr(path, "security.capability", CAPABILITY),
    "touch": lambda path: os.utime(path, (0, 0)),
    "link": lambda path: os.link(path, path + ".mine"),
    "remove": os.unlink,
    "replace": lambda path: os.rename(path, path + ".mine"),
    "mount it writable": mount_it_writable,
    "unmount": unmount,
}
done = []
for path in PATHS:
    os.stat(path)
    for name, attack in ATTACKS.items():
        try: attack(path)
        except (OSError, ValueError): continue
        done.append(f"{name}: {path}")
# What the library does is possible, for every user.
file = os.open(PATHS[0], os.O_RDONLY)
for start, length in ((1 << 62, 1), (0, 8)):  # the mutex, then its use
    fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("@hhqqi4x", fcntl.F_RDLCK, 0, start, length, 0))
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with lab.fresh(LAB, ["agxorin-jp6"]) as (one,):
        yield one


@pytest.fixture
def cluster(board: Board) -> Cluster:
    return Cluster([board])


def create_pod(cluster: Cluster, name: str, mib: int, limits: Mapping[str, int], **pod_settings: str) -> None:
    """Create a pod that allocates GPU memory and keeps it."""
    settings = {
        "command": ["python3.11", "-m", "tegra_device_plugin", "allocate", str(mib), "--hold"],
        "resources": {"limits": limits},
    }
    cluster.create_sleeper(name, cluster.boards[0].name, settings, **pod_settings)


def configure(cluster: Cluster, settings: Mapping[str, Any]) -> None:
    """Change the plugin's settings and restart it: the kubelet takes a minute to update the file.

    An instance that stands by with other settings goes first, as in site.yml.
    """
    cluster.boards[0].exec("docker", "rm", "--force", "tegra-device-plugin")
    entry = {"data": {"config.yaml": json.dumps(settings)}}
    namespace = "--namespace=kube-system"
    cluster.kubectl(namespace, "patch", "configmap", CONFIG_MAP, f"--patch={json.dumps(entry)}")
    pod = cluster.plugin_pod(cluster.boards[0].name)
    assert pod
    cluster.kubectl(namespace, "delete", "pod", pod)


def allocation(cluster: Cluster, pod: str, restarts: int = 0) -> str:
    """Wait until a pod's program has allocated memory; return the line that says how much."""
    lines: list[str] = []

    def allocated() -> bool:
        started = cluster.started(pod)
        lines[:] = cluster.kubectl("logs", pod).splitlines()
        return started is not None and started[1] == restarts and any("allocated" in line for line in lines)

    wait_until(allocated, f"{pod} has allocated; it says {lines}", POD_SECONDS)
    return next(line for line in lines if line.startswith("allocated"))


def test_site_yml_configures_units_and_verifies_them(board: Board, cluster: Cluster) -> None:
    set_toolkit(board, "1.18.0")  # JetPack 6's own ignores strict mode
    run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(UNITS | STRICT | AGENT)}").checked()
    name = cluster.boards[0].name
    assert (cluster.allocatable(CORE), cluster.allocatable(MEMORY)) == ({name: 100}, {name: 8})
    (node,) = cluster.nodes()
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
        "reboot": "skipped",
    }


def test_pytorch_of_the_documents_runs_twice_with_limits(cluster: Cluster) -> None:
    """SIMULATED PyTorch: the plugin's program allocates memory in its place."""
    manifest = yaml.safe_load((CHECKOUT / f"docs/examples/{'pytorch-twice'}.yaml").read_text())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    container["image"] = plugin.reference()
    container["command"] = ["python3.11", "-m", "tegra_device_plugin", "allocate", "4096", "--hold"]
    container["resources"]["limits"][MEMORY] //= 2  # this GPU has half of the memory
    cluster.apply(manifest)
    for name in ("pytorch-0", "pytorch-1"):
        assert allocation(cluster, name).startswith("allocated 1024 of 4096 MiB, then CUDA was out of memory")
    cluster.kubectl("delete", "statefulset", "pytorch", "--cascade=foreground")


def test_a_pod_that_wants_more_than_its_share_is_out_of_memory(cluster: Cluster) -> None:
    create_pod(cluster, "greedy", 2048, {CORE: 60, MEMORY: 3})
    assert allocation(cluster, "greedy") == (
        "allocated 768 of 2048 MiB, then CUDA was out of memory; CUDA says that 0 of 768 MiB are free"
    )


def test_its_neighbour_gets_all_of_his(cluster: Cluster) -> None:
    create_pod(cluster, "modest", 1024, {CORE: 40, MEMORY: 4})
    assert (
        allocation(cluster, "modest") == "allocated 1024 of 1024 MiB; CUDA says that 0 of 1024 MiB are free"
    )
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


def attacks_of_another_user(board: Board, ledger: str) -> list[str]:
    """Return what another user of the board can do with a ledger whose path it knows."""
    beside = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")
    attacks = {
        "read": ("dd", f"if={ledger}", "status=none"),
        "list": ("ls", ledger.rpartition("/")[0]),
        "execute": (ledger,),
    }
    return [
        f"another user: {name}"
        for name, command in attacks.items()
        if board.exec(
            *beside, "sh", "-c", '"$@" >/dev/null 2>&1 && echo done', "sh", *command, check=False
        ).strip()
    ]


def test_a_container_gets_no_door_by_the_files_of_its_limit(cluster: Cluster, board: Board) -> None:
    attack = ("exec", "greedy", "--", "python3.11", "-c", ATTACKS)
    assert json.loads(cluster.kubectl(*attack)) == []
    (container,) = board.exec("docker", "ps", "--quiet", "--filter=name=k8s_main_greedy").split()
    mounts = json.loads(board.exec("docker", "inspect", "--format={{json .Mounts}}", container))
    (ledger,) = (one for one in mounts if one["Destination"] == LEDGER)
    assert (ledger["RW"], attacks_of_another_user(board, ledger["Source"])) == (False, [])


def test_status_adds_up_and_tells_who_waits_for_a_scheduler_that_is_not_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    create_pod(cluster, "foreign", 256, {MEMORY: 1}, schedulerName="hami-scheduler")
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
    assert allocation(cluster, "greedy", restarts=1).startswith("allocated 768 of 2048 MiB")


def test_a_pod_without_memory_is_not_limited_and_has_no_library(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pod", "modest", "greedy")
    create_pod(cluster, "timely", 64, {CORE: 10})
    # The simulated GPU has all of the machine's memory.
    assert "allocated 64 of 64 MiB" in allocation(cluster, "timely")
    board = cluster.boards[0]
    (container,) = board.exec("docker", "ps", "--quiet", "--filter=name=k8s_main_timely").split()
    mounts = board.exec("docker", "inspect", "--format={{json .Mounts}}", container)
    assert "ld.so.preload" not in mounts
    cluster.kubectl("delete", "pod", "timely")


@dataclass(frozen=True)
class System:
    """Another system's names, as its own examples use them: the requests of two pods that fit on one GPU.

    `limit` is the first pod's limit in MiB, `env` its environment.
    """

    preset: str
    first: dict[str, int]
    second: dict[str, int]
    limit: int
    env: dict[str, str]


TOTAL_MIB = 6144
# Units of MiB and percents. tests/unit/plugin/test_units.py has the other systems.
SYSTEMS = (
    System(
        "hami",
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 60},
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 40},
        3000,
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "NVIDIA_GPU_MEMORY_LIMIT": "3000"},
    ),
    System(
        "koordinator",
        {"koordinator.sh/gpu-core": 60, "koordinator.sh/gpu-memory-ratio": 60},
        {"koordinator.sh/gpu-core": 40, "koordinator.sh/gpu-memory-ratio": 40},
        3686,
        {},
    ),
)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: str(system.preset))
def test_pods_of_another_system_run_as_they_are(cluster: Cluster, system: System) -> None:
    units = {"preset": system.preset, "memoryTotal": f"{TOTAL_MIB}Mi"}
    configure(cluster, {"version": "v1", "sharing": {"units": units}})
    name = cluster.boards[0].name

    def offered(resource: str) -> bool:
        return cluster.allocatable(resource)[name] > 0

    for resource in system.first:
        wait_until(partial(offered, resource), resource, POD_SECONDS)
    create_pod(cluster, "first", TOTAL_MIB, system.first)
    create_pod(cluster, "second", 64, system.second)
    line = allocation(cluster, "first")
    assert f"allocated {system.limit // 16 * 16} of {TOTAL_MIB} MiB, then CUDA was out of memory" in line
    assert f"of {system.limit} MiB are free" in line
    assert allocation(cluster, "second").startswith("allocated 64 of 64 MiB;")
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    env = json.loads(cluster.kubectl("exec", "first", "--", "python3.11", "-c", show))
    assert env.items() >= system.env.items()
    # Nothing is left for a third one.
    create_pod(cluster, "third", 64, system.second)
    wait_until(lambda: "Insufficient" in cluster.unschedulable("third"), "the third waits", POD_SECONDS)
    cluster.kubectl("delete", "pod", "first", "second", "third")


def test_koordinators_published_pod_runs_when_it_is_rewritten(cluster: Cluster, tmp_path: Path) -> None:
    """All but its image and its requests for processors and memory, which no board has."""
    config = tmp_path / "config.yaml"
    config.write_text(
        f"version: v1\nsharing: {{units: {{preset: koordinator, memoryTotal: {TOTAL_MIB}Mi}}}}\n"
    )
    nodes, text = read_file(config), PUBLISHED.read_text()
    for manifest, pod in ((text, "as-published"), (rewrite(text, check(text, nodes)), "rewritten")):
        made: dict[str, Any] = yaml.safe_load(manifest)
        made["metadata"]["name"] = pod
        requested = made["spec"]["containers"][0]["resources"]["limits"]
        limits = {name: amount for name, amount in requested.items() if "/" in name}
        command = ["python3.11", "-m", "tegra_device_plugin", "allocate", str(TOTAL_MIB), "--hold"]
        made["spec"]["containers"] = [sleeper({"command": command, "resources": {"limits": limits}})]
        cluster.apply(made)
    # 1 GiB of 6 GiB is 17 percent.
    assert f"allocated {TOTAL_MIB * 17 // 100 // 16 * 16} of {TOTAL_MIB} MiB" in allocation(
        cluster, "rewritten"
    )
    assert "Insufficient koordinator.sh/gpu-memory" in cluster.unschedulable("as-published")
    agent = ("--namespace=kube-system", "exec", "daemonset/tegra-gpu-agent", "--", "python3.11", "-c")
    policies = json.loads(cluster.kubectl(*agent, READ_POLICIES))
    assert policies[cluster.get("pod", "rewritten")["metadata"]["uid"]] == "fixed-share"
    cluster.kubectl("delete", "pod", "as-published", "rewritten")


def device(place: Path) -> dict[str, Any]:
    """Return Koordinator's Device of the board."""
    config = place / "config.yaml"
    config.write_text("version: v1\nsharing: {units: {preset: koordinator, memoryTotal: 2Gi}}\n")
    units = load_plugin(config, {}, {}).units
    assert units
    boards.build(boards.load()["agxorin-jp6"], place / "host")
    infos = koordinator.device_infos(detect(place / "host"), units, Health(True, "ok", "ready"))
    return koordinator.device("jetson-1", infos)


def test_koordinators_device_is_written_once_and_left_to_koordlet(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    wanted = device(tmp_path)
    board = cluster.boards[0]

    def run(*arguments: str) -> str:
        given = f"--extra-vars={json.dumps({'device': wanted})}"
        return play(lab_dir(LAB) / "inventory.ini", tmp_path / "play.yml", given, *arguments).stdout

    assert "changed=False found=the cluster does not have the CRD" in run()
    cluster.apply(yaml.safe_load((CHECKOUT / "tests/unit/plugin/koordinator_crd.yaml").read_text()))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{KIND}")
    for arguments, changed in ((["--check"], True), ([], True), ([], False)):
        assert f"changed={changed} found=." in run(*arguments)
    there = cluster.get(KIND, board.name)
    assert there["spec"] == wanted["spec"]
    assert [owner["name"] for owner in there["metadata"]["ownerReferences"]] == [board.name]
    # As koordlet takes it over.
    cluster.kubectl("label", KIND, board.name, "app.kubernetes.io/managed-by-")
    assert "changed=False found=koordlet makes it." in run()


def test_back_to_one_whole_gpu(cluster: Cluster) -> None:
    run_playbook(LAB, "site.yml").checked()
    name = cluster.boards[0].name
    assert (cluster.allocatable(), cluster.allocatable(MEMORY)) == ({name: 1}, {name: 0})
