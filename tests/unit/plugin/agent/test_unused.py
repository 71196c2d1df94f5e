# SPDX-License-Identifier: Apache-2.0
"""Containers that have the GPU and do not use it are named, and no others.

The programs are real processes. CUDA's driver is simulated. The ledgers are written by the limit's library;
nvmap's list has what the programs say that their driver gave them.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tegra_device_plugin.agent.guard import OBSERVE_SECONDS, Guard
from tegra_device_plugin.agent.memory import MemoryUse
from tegra_device_plugin.agent.pods import PodName, Pods, UnitResources
from tegra_device_plugin.agent.unused import (
    USE_BYTES,
    Container,
    Gpu,
    Holder,
    Record,
    Unused,
    holders,
    is_used,
    step,
    unused,
)
from tegra_device_plugin.cli import main
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.sharing.memory_limit import ledger_path
from tegra_device_plugin.system.hosttree import HostTree

from images.arm64 import gpu_limit
from tests.gpu_limit.rig import Rig
from tests.lab.workloads import libcuda
from tests.unit.plugin.agent.node import CORE, GPU, MEMORY, Node, Pod
from tests.unit.plugin.agent.test_agent import running, sample

MIB = 2**20
POD = PodName("n", "p")
MAIN = Container(POD, "main")
UNITS = Gpu({CORE, MEMORY}, MEMORY, Path("/limits"))


@pytest.mark.parametrize(
    ("memory", "has_context", "used"),
    [
        ({("u", "main"): USE_BYTES}, None, True),
        ({("u", "main"): USE_BYTES}, False, True),  # video, or a program that evades the limit
        ({("u", "main"): USE_BYTES - 1}, None, False),  # it has looked for a GPU
        ({}, None, False),
        ({}, False, False),
        ({}, True, True),
        # Of a container whose name is not known, it may be this one.
        ({("u", ""): USE_BYTES}, None, True),
        ({("u", "other"): USE_BYTES, ("another", "main"): USE_BYTES}, None, False),
        # The memory cannot be read.
        (None, None, None),
        (None, True, True),
        (None, False, False),
    ],
)
def test_memory_or_a_context_is_use(
    memory: Mapping[tuple[str, str], int] | None, has_context: bool | None, used: bool | None
) -> None:
    assert is_used(Holder(MAIN, frozenset({"u"}), "m0"), memory, has_context) is used


def test_the_use_of_a_pod_without_a_known_uid_is_unknown() -> None:
    assert is_used(Holder(MAIN), {}, None) is None


@pytest.mark.parametrize(
    ("uses", "seconds"),
    [
        ({0: False, 60: False, 300: False}, 300),
        ({0: True, 60: False, 300: False}, 300),
        ({0: False, 299: True, 300: False}, None),
        ({0: False, 60: None, 300: False}, None),  # not seen is no proof
        ({0: False, 60: False}, None),
        # Jobs with pauses of four minutes.
        ({now: now % 600 < 360 for now in range(0, 3600, 5)}, None),
    ],
)
def test_a_holder_is_named_after_the_time_without_use(
    uses: Mapping[int, bool | None], seconds: float | None
) -> None:
    records: Mapping[Container, Record] = {}
    for now, used in uses.items():
        records = step(records, [(Holder(MAIN, frozenset({"u"})), used)], now)
        found = unused(records, 300, now)
        assert seconds or not found
    assert found == ({} if seconds is None else {MAIN: seconds})


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [({"old"}, {"old"}, True), ({"old", "new"}, {"new"}, True), ({"old"}, {"old", "new"}, False)],
)
def test_the_next_pod_with_a_name_gets_its_own_time(before: set[str], after: set[str], is_same: bool) -> None:
    records = step({}, [(Holder(MAIN, frozenset(before)), False)], 0)
    records = step(records, [(Holder(MAIN, frozenset(after)), False)], 300)
    assert (MAIN in unused(records, 300, 300)) is is_same
    assert step(records, [], 305) == {}


def test_holders_have_the_gpu_and_no_other_device() -> None:
    found = [
        ContainerAllocation("n", "p", "main", CORE, "c0", 30),
        ContainerAllocation("n", "p", "main", MEMORY, "m4", 2),
        ContainerAllocation("n", "p", "timely", CORE, "c40", 5),
        ContainerAllocation("n", "p", "eye", "jetson-k3s.github.io/argus", "argus0"),
    ]
    names = {"u": POD, "v": PodName("n", "other")}
    assert holders(found, UNITS, names) == [
        Holder(MAIN, frozenset({"u"}), "m4"),
        Holder(Container(POD, "timely"), frozenset({"u"}), ""),
    ]


# Each prints `there`, then the MiB that its driver gave it, and then waits.
SHOW = """
print("there", flush=True)
print(({mib}), flush=True)
sys.stdin.read()
"""
CONTEXT = 150  # MiB of a context; the simulated driver counts none
HEALTHY = {
    "allocates": "alloc(16)",
    "sleeps between jobs": "free(alloc(16))",
    "has a context alone": "",
    "allocates twice": "alloc(16), alloc(32)",
}
# As frameworks go on without an error: torch.cuda.is_available() is false, ggml registers no device.
ON_THE_CPU = {
    "finds no driver": """
import ctypes, sys
try: ctypes.CDLL("libcuda.so.2")
except OSError: pass
""",
    "finds a driver that is too old": """
import ctypes, sys
driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert driver.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value < 99990
""",
    "counts devices": """
import ctypes, sys
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
""",
}
FALLBACKS, HEALTHY_PODS = 10, 20


@dataclass(frozen=True)
class Workload:
    number: int
    """Of its pod."""
    kind: str
    pid: int
    mib: int

    @property
    def container(self) -> Container:
        return Container(PodName("default", f"pod-{self.number}"), "c")


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("limits")
    ledger_path(directory, "").mkdir()
    return directory


@pytest.fixture(scope="module")
def workloads(limits: Path) -> Iterator[list[Workload]]:
    """The programs of 30 pods, each with a ledger of its own."""
    kinds = [*ON_THE_CPU] * 4, [*HEALTHY] * 5
    with ExitStack() as started:
        yield [
            start(started, limits, number, kind)
            for number, kind in enumerate([*kinds[0][:FALLBACKS], *kinds[1]], start=1)
        ]


def start(started: ExitStack, limits: Path, number: int, kind: str) -> Workload:
    link = ledger_path(limits, f"m{number}")
    ledger.provide(link, 512 * MIB, CONTEXT * MIB, lambda: bytes(32))
    rig = Rig(libcuda("12.6"), limit=None, ledger=ledger.mounted(link), library=gpu_limit.build("amd64"))
    if kind in ON_THE_CPU:
        process = subprocess.Popen(
            [sys.executable, "-c", ON_THE_CPU[kind] + SHOW.format(mib="0")],
            env=rig.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
    else:
        process = rig.start(f"{HEALTHY[kind]}\n{SHOW.format(mib=f'int(used()) + {CONTEXT}')}")
    started.enter_context(process)
    started.callback(process.kill)
    assert process.stdout
    assert process.stdout.readline() == "there\n", kind
    return Workload(number, kind, process.pid, int(process.stdout.readline()))


async def named(node: Node, unit: Gpu, after: float, until: float) -> dict[Container, float]:
    """Observe for so many seconds of a clock that the test sets; give the time of each container's name."""
    loop, clock = asyncio.get_running_loop(), [1000.0]
    loop.time = lambda: clock[0]  # type: ignore[method-assign]
    host = HostTree(node.root)
    pods = Pods(node.kubelet.socket, host, UnitResources(CORE, MEMORY, lambda ids: ids))
    guard = Guard(MemoryUse(node.root), host, pods, "report", 0)
    watch = Unused(guard, host, pods, unit, after)
    first: dict[Container, float] = {}
    while clock[0] <= 1000 + until:
        await guard.observe()
        await watch.observe()
        for container in watch.seconds:
            first.setdefault(container, clock[0] - 1000)
        clock[0] += OBSERVE_SECONDS
    return first


def admit(node: Node, workload: Workload, **pod: int) -> None:
    node.admits(Pod(workload.number, f"pod-{workload.number}", **pod))
    node.process(workload.pid, workload.number)
    if workload.kind != "finds no driver":  # all others have opened nvmap
        node.use_memory(**{f"p{workload.pid}": workload.mib})


@pytest.mark.parametrize("source", ["nvmap", "ledgers"])
async def test_ten_programs_on_the_cpu_are_named_within_five_minutes_and_none_of_twenty_others(
    source: str, node: Node, limits: Path, workloads: list[Workload]
) -> None:
    for one in workloads:
        if source == "nvmap":  # replicas of a whole GPU, without the limit
            admit(node, one, gpus=1)
        else:
            admit(node, one, units=1, first_unit=one.number)
    if source == "nvmap":
        gpu = Gpu({GPU}, "", limits)
    else:
        gpu = Gpu({CORE, MEMORY}, MEMORY, limits)
        (node.root / "sys/kernel/debug/nvmap/iovmm/clients").unlink()
    first = await named(node, gpu, after=240, until=900)
    assert set(first) == {one.container for one in workloads if one.kind in ON_THE_CPU}
    assert len(first) == FALLBACKS
    assert len(workloads) - len(first) == HEALTHY_PODS
    assert max(first.values()) <= 300


async def test_a_pod_that_has_ended_holds_nothing(
    node: Node, limits: Path, workloads: list[Workload]
) -> None:
    admit(node, workloads[0], gpus=1)
    (node.root / f"proc/{workloads[0].pid}/cgroup").unlink()
    assert await named(node, Gpu({GPU}, "", limits), after=60, until=120) == {}


def test_allocations_in_the_agents_container_shows_what_the_agent_has_named(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in ((1, "chat-0"), (2, "vision")):
        node.admits(Pod(number, name, units=1, first_unit=number))
        node.process(number, number)
    node.use_memory(p1=0, p2=200)
    with running(node, "--unused-after=1s") as agent:
        line = agent.until_logged("has not used it")
        assert "pod default/chat-0 container c has the GPU and has not used it for " in line
        labels = {"namespace": "default", "pod": "chat-0", "container": "c"}
        found = {key: value for key, value in agent.metrics().items() if "_unused_" in key[0]}
        assert found.keys() == {sample("tegra_gpu_agent_unused_seconds", **labels)}
        assert min(found.values()) >= 1
        monkeypatch.setenv("METRICS_ADDRESS", agent.address)
        places = [f"--host-root={node.root}", f"--pod-resources={node.kubelet.socket}"]
        assert main(["allocations", *places, "--output=json"]) == 0
        rows = {one["pod"]: one for one in json.loads(capsys.readouterr().out)["containers"]}
        assert rows["chat-0"]["unused_seconds"] >= 1
        assert rows["chat-0"]["unused_since"].endswith("Z")
        assert (rows["vision"]["unused_seconds"], rows["vision"]["unused_since"]) == (None, None)
        assert main(["allocations", *places]) == 0
        assert "not used since 2" in capsys.readouterr().out
    assert main(["allocations", *places]) == 0
    output = capsys.readouterr()
    assert "unused GPUs are not shown: METRICS_ADDRESS: " in output.err
    assert "not used" not in output.out
