# SPDX-License-Identifier: Apache-2.0
"""Compares the GPU memory of each pod with its share, and reports or ends the pod that is over its share."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from tegra_device_plugin.agent.memory import MemoryUse, in_containers, measure
from tegra_device_plugin.agent.pods import Member, PodName, Pods, container_names, has_host_pids, members
from tegra_device_plugin.config.settings import Mode
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

OBSERVE_SECONDS = 5.0
READ_DEADLINE_SECONDS = 3.0
# Consecutive observations. A process may allocate new memory shortly before it frees the old memory.
OBSERVATIONS = 2
_MIB = 2**20

# Memory of one process that CUDA's driver takes and the limit (plugin/gpu_limit) does not see. Defaults of
# CUDA's programming guide: 8 MiB for the heap of kernels, 1 MiB for their printf, and 1 KiB of local memory
# for each resident thread, which is 30 MiB on a Thor (20 multiprocessors of 1,536 threads). 25 MiB are left
# for the code of kernels, which CUDA loads at its first use since 11.7.
PROCESS_SLACK = 64 * _MIB

logger = logging.getLogger(__name__)


class Guard:
    """The GPU memory at the last observation, in bytes: `used` by pod uid, `in_container` by uid and name.

    An unknown container has an empty name. `outside` is the memory of processes without a pod, `kernel` the
    kernel's own. All are None while the memory cannot be read.
    """

    def __init__(
        self, memory: MemoryUse, host: HostTree, pods: Pods, mode: Mode, context_overhead: int
    ) -> None:
        """`context_overhead`: bytes that the limit charges for a CUDA context; 0: not known.

        Raises CannotEndError if the mode is `evict` and processes cannot be ended.
        """
        if mode == "evict":
            check_can_end(host)
        self.used: Mapping[str, int] | None = None
        self.in_container: Mapping[tuple[str, str], int] | None = None
        self.outside: int | None = None
        self.kernel: int | None = None
        self.over_limit: Counter[PodName] = Counter()
        self.ended: Counter[PodName] = Counter()
        self.observed_at = 0.0
        self._memory = memory
        self._host = host
        self._pods = pods
        self._mode = mode
        self._context_overhead = context_overhead
        self._processes: Counter[str] = Counter()  # with GPU memory, by pod uid
        self._over: dict[str, int] = {}
        self._blocking = BlockingCalls(READ_DEADLINE_SECONDS)
        self._problem_log = ProblemLog()

    async def run(self, *after: Callable[[], Awaitable[None]]) -> None:
        """Observe until cancelled; call the functions `after` each observation."""
        while True:
            await self.observe()
            for function in after:
                await function()
            await asyncio.sleep(OBSERVE_SECONDS)

    async def observe(self) -> None:
        """Read the memory once, and act on pods over their shares."""
        try:
            by_process, members, names = await self._blocking.run(self._measure)
        except (OSError, TimeoutError) as error:
            self._problem_log.warn(f"GPU memory is not watched: {describe_error(error, 'the read hangs')}")
            self.used = self.in_container = self.outside = self.kernel = None
        else:
            self._problem_log.resolved("GPU memory is watched again")
            await self._pods.refresh({member.uid for member in members.values()})
            self._sum_by_pod(by_process, members)
            self.in_container = in_containers(by_process, members, names)
            for uid in self._newly_over_limit():
                pids = [pid for pid, member in members.items() if member.uid == uid and by_process[pid]]
                await self._report_or_end(uid, pids)
        self.observed_at = asyncio.get_running_loop().time()

    def _measure(self) -> tuple[Mapping[int, int], Mapping[int, Member], Mapping[str, str]]:
        """Give bytes by pid, the pids of pods, and names of containers by id."""
        return *measure(self._memory, self._host), container_names(self._host)

    def _sum_by_pod(self, by_process: Mapping[int, int], members: Mapping[int, Member]) -> None:
        used: Counter[str] = Counter()
        for pid, member in members.items():
            used[member.uid] += by_process[pid]
        self._processes = Counter(member.uid for pid, member in members.items() if by_process[pid])
        self.used, self.kernel = used, by_process.get(0, 0)
        self.outside = sum(by_process.values()) - self.kernel - used.total()
        # Prometheus has scraped the counters of deleted pods.
        known = set(self._pods.names.values())
        for counter in (self.over_limit, self.ended):
            for pod in counter.keys() - known:
                del counter[pod]

    def _newly_over_limit(self) -> list[str]:
        """Give each pod (uid) once: at its observation number OBSERVATIONS in a row over its share."""
        shares = {uid: self._pods.share(uid).memory_bytes for uid in self.used or ()}
        over = {
            uid
            for uid, used in (self.used or {}).items()
            if shares[uid]
            and used > shares[uid] + slack(shares[uid], self._processes[uid], self._context_overhead)
        }
        self._over = {uid: self._over.get(uid, 0) + 1 for uid in over}
        return sorted(uid for uid, count in self._over.items() if count == OBSERVATIONS)

    async def _report_or_end(self, uid: str, pids: list[int]) -> None:
        """Log the pod, and in the mode `evict` end its GPU processes."""
        pod = self._pods.names[uid]  # a pod with a share has a name
        self.over_limit[pod] += 1
        used, share = _mib((self.used or {})[uid]), _mib(self._pods.share(uid).memory_bytes)
        text = f"pod {pod} (uid {uid}) has {used} of GPU memory, its share is {share}"
        if self._mode == "report":
            logger.warning("%s: reported only", text)
            return
        try:
            ended = await self._blocking.run(lambda: [pid for pid in pids if self._end(pid, uid)])
        except TimeoutError:
            logger.warning("%s: ending its processes hangs", text)
            return
        self.ended[pod] += len(ended)
        logger.warning("%s: ended its processes %s", text, ", ".join(map(str, ended)) or "none")
        self._over.pop(uid, None)  # so that the pod is ended again if it exceeds its share again

    def _end(self, pid: int, uid: str) -> bool:
        def is_of_pod(pid: int) -> bool:
            return any(member.uid == uid for member in members(self._host, [pid]).values())

        try:
            return end_process(pid, is_of_pod)
        except OSError as error:
            logger.warning("cannot end process %d: %s", pid, error)
            return False


def slack(share: int, processes: int, context_overhead: int) -> int:
    """Give the bytes by which a pod may be over its share.

    The limit grants no more contexts than fit into the share, so further processes add nothing.
    """
    return PROCESS_SLACK * (min(processes, share // context_overhead) if context_overhead else processes)


def _mib(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"


class CannotEndError(OSError):
    """Processes of pods cannot be ended on this node."""


def check_can_end(host: HostTree) -> None:
    """Raise CannotEndError without the host's process ids or pidfd_open (Linux 5.3; JetPack 4 has 4.9)."""
    if not has_host_pids(host):
        raise CannotEndError("--mode evict needs the host's process ids: set hostPID in the agent's pod")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise CannotEndError(
            "--mode evict needs pidfd_open, of Linux 5.3 and later, which seccomp can forbid; "
            f"this kernel is {os.uname().release} ({error.strerror}). Use --mode report"
        ) from error


def end_process(pid: int, is_of_pod: Callable[[int], bool]) -> bool:
    """Kill process `pid` if `belongs(pid)`. True if it was killed.

    The pidfd is opened before the check, because a pid can be used again at any moment. So the signal never
    reaches another process. Raises OSError if the process may not be killed.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_of_pod(pid):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True
