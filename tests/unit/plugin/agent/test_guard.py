# SPDX-License-Identifier: Apache-2.0
"""The guard ends a pod over its share, and no other. The ended processes are real."""

import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tegra_device_plugin.agent.guard import PROCESS_SLACK, CannotEndError, Guard, end_process
from tegra_device_plugin.agent.memory import MemoryUse
from tegra_device_plugin.agent.pods import PodName, Pods
from tegra_device_plugin.config.settings import Mode
from tegra_device_plugin.system.hosttree import HostTree

from tests.unit.plugin.agent.node import UNIT_MIB, Node, Pod, uid

Make = Callable[[Mode], Guard]
MIB = 2**20
OVERHEAD = 150  # of a CUDA context, as the limit's library charges it, in MiB


@pytest.fixture
def guard(node: Node, pods: Pods) -> Make:
    def make(mode: Mode) -> Guard:
        return Guard(MemoryUse(node.root), HostTree(node.root), pods, mode, OVERHEAD * MIB)

    return make


@pytest.fixture
def start() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def run() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


async def test_a_pod_over_its_share_is_reported_once_and_counted_until_it_is_gone(
    node: Node, guard: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.admits(Pod(1, "greedy", units=2))
    node.admits(Pod(2, "modest", units=2))
    node.admits(Pod(3, "unlimited", percent=50))
    for pid, pod in {10: 1, 20: 2, 30: 3}.items():
        node.process(pid, pod)
    node.use_memory(p10=129, p20=128, p30=4000)
    watch = guard("report")
    await watch.observe()
    assert not caplog.records  # it may be about to free something
    for _ in range(3):
        await watch.observe()
    assert [record.message for record in caplog.records] == [
        f"pod default/greedy (uid {uid(1)}) has 129 MiB of GPU memory, its share is 128 MiB: reported only"
    ]
    assert watch.over_limit == {PodName("default", "greedy"): 1}
    node.use_memory(p10=1)
    await watch.observe()
    node.use_memory(p10=200)
    await watch.observe()
    await watch.observe()
    assert watch.over_limit == {PodName("default", "greedy"): 2}
    monkeypatch.setattr("tegra_device_plugin.agent.pods.REFRESH_SECONDS", 0.0)
    shutil.rmtree(node.root / "var/log/pods")
    await watch.observe()
    assert not watch.over_limit


async def test_a_process_that_is_of_another_pod_by_now_is_left_alone(
    node: Node, guard: Make, start: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.admits(Pod(1, "greedy", units=1))
    innocent = start()
    node.process(innocent.pid, 1)
    node.use_memory(**{f"p{innocent.pid}": 100})
    watch = guard("evict")
    await watch.observe()
    open_pidfd = os.pidfd_open

    def taken_over(pid: int) -> int:
        node.process(pid, 2)  # the number went to another process after the observation
        return open_pidfd(pid)

    monkeypatch.setattr(os, "pidfd_open", taken_over)
    await watch.observe()
    assert innocent.poll() is None
    assert watch.ended[PodName("default", "greedy")] == 0


def test_a_number_that_is_used_again_after_it_was_opened_is_not_hit(
    start: Callable[[], subprocess.Popen[bytes]],
) -> None:
    ended = start()

    def ends_meanwhile(_pid: int) -> bool:
        ended.kill()
        ended.wait()
        return True

    assert not end_process(ended.pid, ends_meanwhile)
    assert not end_process(ended.pid, lambda _pid: True)


async def test_without_the_kubelet_no_process_is_ended(
    node: Node, guard: Make, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    node.admits(Pod(1, "unknown", units=1))
    node.kubelet.refuses = True
    process = start()
    node.process(process.pid, 1)
    node.use_memory(**{f"p{process.pid}": 4000})
    watch = guard("evict")
    for _ in range(3):
        await watch.observe()
    assert process.poll() is None


async def test_a_failed_kill_is_logged(
    node: Node,
    guard: Make,
    start: Callable[[], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    node.admits(Pod(1, "greedy", units=1))
    process = start()
    node.process(process.pid, 1)
    node.use_memory(**{f"p{process.pid}": 100})
    watch = guard("evict")
    monkeypatch.setattr("signal.pidfd_send_signal", refuse)
    await watch.observe()
    await watch.observe()
    assert f"cannot end process {process.pid}: [Errno 1] Operation not permitted" in caplog.text
    assert caplog.records[-1].message.endswith("ended its processes none")


def test_evict_needs_the_hosts_process_ids(node: Node, guard: Make) -> None:
    """In another namespace, a number of the host's is no process or another one."""
    (node.root / "proc/self").parent.mkdir(exist_ok=True)
    (node.root / "proc/self").symlink_to("999999999")
    with pytest.raises(CannotEndError, match="set hostPID in the agent's pod"):
        guard("evict")
    guard("report")


async def test_unreadable_memory_is_logged_once(
    node: Node, guard: Make, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(node.root / "sys/kernel/debug")
    watch = guard("report")
    with caplog.at_level(logging.INFO):
        await watch.observe()
        await watch.observe()
        assert [record.message for record in caplog.records] == [
            "GPU memory is not watched: cannot read /sys/kernel/debug/nvmap/iovmm/clients: No such file or "
            "directory: mount debugfs, and make it visible here"
        ]
        assert watch.used is None
        (node.root / "sys/kernel/debug/nvmap/iovmm").mkdir(parents=True)
        node.use_memory()
        await watch.observe()
    assert caplog.records[-1].message == "GPU memory is watched again"


@pytest.mark.parametrize("between", [10, None], ids=["under", "gone"])
async def test_only_observations_in_a_row_count(between: int | None, node: Node, guard: Make) -> None:
    node.admits(Pod(1, "greedy", units=1))
    node.process(10, 1)
    watch = guard("report")
    for mib in (100, between, 100):
        node.used_mib.clear()
        node.use_memory(**{} if mib is None else {"p10": mib})
        await watch.observe()
    assert not watch.over_limit
    await watch.observe()
    await watch.observe()
    assert watch.over_limit == {PodName("default", "greedy"): 1}


async def test_a_pod_that_exceeds_its_share_again_is_ended_again(
    node: Node, guard: Make, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    node.admits(Pod(1, "greedy", units=1))
    watch = guard("evict")
    for _ in range(2):
        process = start()
        node.process(process.pid, 1)
        node.used_mib.clear()
        node.use_memory(**{f"p{process.pid}": 100})
        await watch.observe()
        await watch.observe()
        assert process.wait(5) == -9
    assert watch.over_limit == {PodName("default", "greedy"): 2}


async def test_without_a_gpu_nothing_is_watched(
    tmp_path: Path, pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "empty"
    await Guard(MemoryUse(root), HostTree(root), pods, "report", 0).observe()
    assert "no Tegra GPU here" in caplog.text


SLACK = PROCESS_SLACK // MIB
# In MiB, of each process its CUDA memory and its context.
KEPT = {
    "one process uses all that the library grants": (512, [(512 - OVERHEAD, OVERHEAD)]),
    "a context that is smaller than its charge": (512, [(512 - OVERHEAD, 120)]),
    "two processes": (1024, [(400, OVERHEAD), (1024 - 400 - 2 * OVERHEAD, OVERHEAD)]),
    "contexts alone": (320, [(0, OVERHEAD), (0, OVERHEAD)]),
    "code and heaps, of all memory that the library grants": (512, [(512 - OVERHEAD, OVERHEAD + SLACK)]),
    "code and heaps of several processes": (640, [(10, OVERHEAD + SLACK)] * 4),
    "nothing": (64, [(0, 0)]),
}
EXCEEDED = {
    "CUDA memory past the library": (512, [(512, OVERHEAD)]),
    "by one MiB past the slack": (512, [(512 - OVERHEAD + SLACK + 1, OVERHEAD)]),
    "by one MiB past that of several": (640, [(10, OVERHEAD + SLACK)] * 3 + [(11, OVERHEAD + SLACK)]),
    "processes without contexts add no slack": (320, [(320 // 8 + 2 * SLACK // 8 + 1, 0)] * 8),
    "one process of two": (1024, [(1000, OVERHEAD), (0, OVERHEAD)]),
    "no CUDA memory, but more contexts than fit into the share": (128, [(0, OVERHEAD)]),
}


@pytest.mark.parametrize(
    ("share", "processes", "is_ended"),
    [(*row, False) for row in KEPT.values()] + [(*row, True) for row in EXCEEDED.values()],
    ids=[*KEPT, *EXCEEDED],
)
async def test_evict_ends_no_pod_that_kept_its_limit(  # noqa: PLR0917 - a table and the fixtures
    share: int,
    processes: list[tuple[int, int]],
    is_ended: bool,
    node: Node,
    guard: Make,
    start: Callable[[], subprocess.Popen[bytes]],
) -> None:
    node.admits(Pod(1, "pod", units=share // UNIT_MIB))
    started = [start() for _ in processes]
    for process, (cuda, context) in zip(started, processes, strict=True):
        node.process(process.pid, 1)
        node.use_memory(**{f"p{process.pid}": cuda + context})
    watch = guard("evict")
    for _ in range(3):
        await watch.observe()
    assert watch.over_limit[PodName("default", "pod")] == is_ended
    for process in started:
        assert (process.wait(5) == -9) if is_ended else (process.poll() is None)
