# SPDX-License-Identifier: Apache-2.0
"""Compares the GPU memory that each pod holds with its share, and reports or ends the pod that takes more."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from tegra_device_plugin.agent import ending
from tegra_device_plugin.agent.cgroups import Member, member_of
from tegra_device_plugin.agent.memory import MemoryUse, UnknownUseError, in_containers, measure
from tegra_device_plugin.agent.overuse import Overuse
from tegra_device_plugin.agent.pods import Pods
from tegra_device_plugin.agent.shares import PodName, container_names
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.sensor import Sensor

Mode = Literal["report", "evict"]

LOOK_SECONDS = 5.0
READ_DEADLINE_SECONDS = 3.0
_MIB = 2**20

logger = logging.getLogger(__name__)


class Guard:
    """What each pod was seen to hold at the last look, in bytes by uid.

    `in_container` is the same by uid and container, whose name is empty where it is not known. `outside` is
    held by processes of no pod, `kernel` by the kernel; all are None while nobody knows.
    """

    def __init__(self, memory: MemoryUse, host: HostTree, pods: Pods, mode: Mode) -> None:
        """Raises ending.NoPidfdError if the mode is `evict` and this kernel cannot do that."""
        if mode == "evict":
            ending.check_possible()
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
        self._overuse = Overuse()
        self._sensor = Sensor(READ_DEADLINE_SECONDS)
        self._problem_log = ProblemLog()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look once, and act."""
        try:
            held, members, names = await self._sensor.read(self._measure)
        except (UnknownUseError, TimeoutError) as error:
            self._problem_log.warn(f"GPU memory is not watched: {describe_error(error, 'the read hangs')}")
            self.used = self.in_container = self.outside = self.kernel = None
        else:
            self._problem_log.resolved("GPU memory is watched again")
            await self._pods.refresh({member.uid for member in members.values()})
            self._judge(held, members)
            self.in_container = in_containers(held, members, names)
        self.observed_at = asyncio.get_running_loop().time()

    def _measure(self) -> tuple[Mapping[int, int], Mapping[int, Member], Mapping[str, str]]:
        """Bytes by pid, the pids that are in a pod, and names of containers by id."""
        return *measure(self._memory, self._host), container_names(self._host)

    def _judge(self, held: Mapping[int, int], members: Mapping[int, Member]) -> None:
        used: Counter[str] = Counter()
        for pid, member in members.items():
            used[member.uid] += held[pid]
        self.used, self.kernel = used, held.get(0, 0)
        self.outside = sum(held.values()) - self.kernel - used.total()
        self._forget_ended_pods()
        limits = {uid: self._pods.share(uid).memory_bytes for uid in used}
        for uid in self._overuse.observe(used, limits):
            pids = [pid for pid, member in members.items() if member.uid == uid and held[pid]]
            self._act(uid, used[uid], limits[uid], pids)

    def _act(self, uid: str, used: int, limit: int, pids: list[int]) -> None:
        """Say it in one line, and end the pod's GPU processes if that is the mode."""
        pod = self._pods.names[uid]  # it has a share, so it has a name
        self.over_limit[pod] += 1
        what = f"pod {pod} (uid {uid}) holds {_mib(used)} of GPU memory, its share is {_mib(limit)}"
        if self._mode == "report":
            logger.warning("%s: reported only", what)
            return
        ended = [pid for pid in pids if self._end(pid, uid)]
        self.ended[pod] += len(ended)
        logger.warning("%s: ended its processes %s", what, ", ".join(map(str, ended)) or "none")
        self._overuse.forgive(uid)

    def _end(self, pid: int, uid: str) -> bool:
        def is_its(pid: int) -> bool:
            member = member_of(self._host, pid)
            return member is not None and member.uid == uid

        try:
            return ending.end(pid, is_its)
        except OSError as error:
            logger.warning("cannot end process %d: %s", pid, error)
            return False

    def _forget_ended_pods(self) -> None:
        """Pods come and go for years; what was counted of one that has gone was scraped long ago."""
        known = set(self._pods.names.values())
        for counted in (self.over_limit, self.ended):
            for pod in counted.keys() - known:
                del counted[pod]


def _mib(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"
