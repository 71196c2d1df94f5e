# SPDX-License-Identifier: Apache-2.0
"""The limit and the guard count the same memory: the guard ends no pod whose programs kept to the limit.

The programs run with the limit's library, on a simulated driver. The library decides what they get. The
node's list of memory shows that, and what a driver takes besides: contexts, code, heaps.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tegra_device_plugin.agent.guard import PROCESS_SLACK, Guard
from tegra_device_plugin.agent.memory import MemoryUse
from tegra_device_plugin.agent.pods import PodName, Pods
from tegra_device_plugin.system.hosttree import HostTree

from images.arm64 import gpu_limit
from tests import ledgers
from tests.gpu_limit.rig import Rig
from tests.lab.workloads import libcuda
from tests.unit.plugin.agent.node import UNIT_MIB, Node, Pod

MIB = 2**20
SHARE, OVERHEAD = 512, 150
CODE, HEAPS = 40, 24
assert (CODE + HEAPS) * MIB == PROCESS_SLACK

# A program allocates as often as it can, `most` times at most.
PROGRAM = """
context = c_void_p()
call("cuCtxGetCurrent", byref(context))
count = 0
while context and count < {most} and alloc({mib}): count += 1
print("there", flush=True)
print(1 if context else 0, int(used()), flush=True)
sys.stdin.read()
"""
# MiB and how often at most, for each process; then what the driver takes for each besides its context.
KEPT = {
    "contexts alone, more than fit": ([(0, 0)] * 5, 0),
    "one process, all that it gets": ([(1, 1000)], 0),
    "with code": ([(1, 1000)], CODE),
    "with code and heaps": ([(1, 1000)], CODE + HEAPS),
    "several processes, all that they get": ([(10, 1), (12, 1), (1, 1000)], 0),
    "several with code and heaps": ([(10, 1), (12, 1), (1, 1000)], CODE + HEAPS),
    "at the limit, and one more": ([(362, 1), (1, 1)], CODE + HEAPS),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as started:
        yield started


@pytest.fixture
def limited(tmp_path: Path) -> Rig:
    ledger = tmp_path / "ledger"
    ledgers.write(ledger, limit=SHARE * MIB, overhead=OVERHEAD * MIB)
    return Rig(libcuda("12.6"), limit=None, ledger=ledger, library=gpu_limit.build("amd64"))


def started(stack: ExitStack, rig: Rig, mib: int, most: int) -> tuple[subprocess.Popen[str], int]:
    """Start a program of the pod. Return it, and the MiB that it has with its context."""
    process = stack.enter_context(rig.standing(PROGRAM.format(mib=mib, most=most)))
    assert process.stdout
    contexts, used = map(int, process.stdout.readline().split())
    return process, contexts * OVERHEAD + used


async def observed(node: Node, pods: Pods) -> Guard:
    guard = Guard(MemoryUse(node.root), HostTree(node.root), pods, "evict", OVERHEAD * MIB)
    for _ in range(3):
        await guard.observe()
    return guard


@pytest.mark.parametrize(("programs", "besides"), KEPT.values(), ids=KEPT)
async def test_a_pod_that_the_limit_let_live_is_not_ended(  # noqa: PLR0917 - a table and the fixtures
    programs: list[tuple[int, int]], besides: int, limited: Rig, node: Node, pods: Pods, stack: ExitStack
) -> None:
    node.admits(Pod(1, "pod", units=SHARE // UNIT_MIB))
    running = [started(stack, limited, *program) for program in programs]
    for process, mib in running:
        node.process(process.pid, 1)
        node.use_memory(**{f"p{process.pid}": mib + besides if mib else 0})
    guard = await observed(node, pods)
    assert not guard.over_limit
    assert [process.poll() for process, _ in running] == [None] * len(programs)


async def test_a_pod_with_a_program_that_evades_the_limit_is_ended(
    limited: Rig, node: Node, pods: Pods, stack: ExitStack
) -> None:
    node.admits(Pod(1, "pod", units=SHARE // UNIT_MIB))
    kept, evading = started(stack, limited, 1, 1000), started(stack, limited.but(library=None), 1, 200)
    assert (kept[1], evading[1]) == (SHARE, 350)
    for process, mib in (kept, evading):
        node.process(process.pid, 1)
        node.use_memory(**{f"p{process.pid}": mib})
    guard = await observed(node, pods)
    assert guard.over_limit == {PodName("default", "pod"): 1}
    assert [process.wait(5) for process, _ in (kept, evading)] == [-9, -9]
