# SPDX-License-Identifier: Apache-2.0
"""Finds containers that have the GPU and do not use it.

A container uses the GPU while one of its processes has GPU memory by nvmap or NVML, or counts a CUDA context
in the ledger of its memory limit. A program that silently runs on the CPU has neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tegra_device_plugin.agent.guard import Guard
from tegra_device_plugin.agent.pods import PodName, Pods, container_names, members
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.sharing.memory_limit import ledger_path
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

# Less is no use: a program that only looks for a GPU opens nvmap, and may have small buffers there. A CUDA
# context takes 100 MiB and more, one video frame of 1920 x 1080 takes 3 MiB.
USE_BYTES = 1 << 20
READ_DEADLINE_SECONDS = 3.0

logger = logging.getLogger(__name__)


class Gpu(NamedTuple):
    """The names by which containers get the GPU, and the directory of the memory limit's files."""

    resources: Collection[str]
    memory_resource: str
    """Containers with this resource have a ledger; empty: there are no limits."""
    limit_directory: Path


class Container(NamedTuple):
    pod: PodName
    name: str

    def __str__(self) -> str:
        return f"{self.pod} container {self.name}"


@dataclass(frozen=True)
class Holder:
    """A container that has the GPU."""

    container: Container
    uids: frozenset[str] = frozenset()
    """Of the pods with this name. An ended pod can be beside the next pod with its name."""
    memory_device: str = ""
    """The first device of its GPU memory, which names its ledger; empty: it has no memory limit."""


class Record(NamedTuple):
    """A holder at earlier observations."""

    uids: frozenset[str]
    used_at: float
    """The last observation of use, or the first observation of the holder. In seconds."""


def holders(
    allocations: Iterable[ContainerAllocation], gpu: Gpu, names: Mapping[str, PodName]
) -> list[Holder]:
    """Give the containers that have the GPU. `names` are the node's pods by uid."""
    devices: dict[Container, str] = {}
    for one in allocations:
        if one.resource in gpu.resources:
            container = Container(PodName(one.namespace, one.pod), one.container)
            device = one.device if one.resource == gpu.memory_resource else ""
            devices[container] = devices.get(container) or device
    return [
        Holder(container, frozenset(uid for uid, name in names.items() if name == container.pod), device)
        for container, device in devices.items()
    ]


def is_used(
    holder: Holder, memory: Mapping[tuple[str, str], int] | None, has_context: bool | None
) -> bool | None:
    """True if the container uses the GPU; None: not known.

    `memory` are bytes by pod uid and container, None while they cannot be read. An empty container name may
    be any container of the pod. `has_context` is the ledger's answer, None without a ledger.
    """
    if has_context:
        return True
    if memory is None or not holder.uids:
        return has_context
    keys = ((uid, name) for uid in holder.uids for name in (holder.container.name, ""))
    return any(memory.get(key, 0) >= USE_BYTES for key in keys)


def step(
    before: Mapping[Container, Record], used: Iterable[tuple[Holder, bool | None]], now: float
) -> dict[Container, Record]:
    """Give the records after an observation. An unknown use counts as use, and a new pod is a new holder."""
    records = {}
    for holder, is_used in used:
        known = before.get(holder.container)
        is_same = known is not None and holder.uids <= known.uids
        used_at = known.used_at if known and is_same and is_used is False else now
        records[holder.container] = Record(holder.uids, used_at)
    return records


def unused(records: Mapping[Container, Record], after: float, now: float) -> dict[Container, float]:
    """Give the seconds without use, of the containers without use for `after` seconds and more."""
    return {
        container: now - record.used_at
        for container, record in records.items()
        if now - record.used_at >= after
    }


def running(host: HostTree) -> frozenset[tuple[str, str]]:
    """Give the containers with a process, by pod uid and name. Raises OSError as `members`."""
    names = container_names(host)
    pids = map(int, filter(str.isdecimal, host.names("/proc")))
    return frozenset(
        (one.uid, names[one.container]) for one in members(host, pids).values() if one.container in names
    )


class Unused:
    """The containers that have the GPU without use, in seconds, at the last observation."""

    def __init__(self, guard: Guard, host: HostTree, pods: Pods, gpu: Gpu, after: float) -> None:
        """`after` is in seconds."""
        self.seconds: Mapping[Container, float] = {}
        self._guard = guard
        self._host = host
        self._pods = pods
        self._gpu = gpu
        self._after = after
        self._records: Mapping[Container, Record] = {}
        self._blocking = BlockingCalls(READ_DEADLINE_SECONDS)
        self._problem_log = ProblemLog()

    async def observe(self) -> None:
        """Judge all holders by the guard's last observation and by the ledgers."""
        await self._pods.refresh(())
        now = asyncio.get_running_loop().time()
        found = holders(self._pods.allocations, self._gpu, self._pods.names)
        try:
            contexts = await self._blocking.run(lambda: [self._has_context(one) for one in found])
            used = (
                (holder, is_used(holder, self._guard.in_container, has_context))
                for holder, has_context in zip(found, contexts, strict=True)
            )
            self._records = step(self._records, used, now)
            seconds = unused(self._records, self._after, now)
            if seconds:  # most nodes have none, and then no process is read
                seconds = await self._of_running(seconds)
        except (OSError, TimeoutError) as error:
            reason = describe_error(error, "a read hangs")
            self._problem_log.warn(f"unused GPUs are not found: {reason}")
            self.seconds = {}
            return
        self._problem_log.resolved("unused GPUs are found again")
        before, self.seconds = self.seconds, seconds
        for container in seconds.keys() - before.keys():
            logger.warning(
                "pod %s has the GPU and has not used it for %.0f s: no process of it has GPU memory",
                container,
                seconds[container],
            )

    async def _of_running(self, seconds: Mapping[Container, float]) -> dict[Container, float]:
        """Leave out containers without a process: kubelets before 1.34 list a pod that has ended, too."""
        there = await self._blocking.run(lambda: running(self._host))
        return {
            container: value
            for container, value in seconds.items()
            if any((uid, container.name) in there for uid in self._records[container].uids)
        }

    def _has_context(self, holder: Holder) -> bool | None:
        if not holder.memory_device:
            return None
        try:
            return bool(ledger.read(ledger_path(self._gpu.limit_directory, holder.memory_device)).processes)
        except (OSError, ValueError):  # the container was never started, or has damaged its ledger
            return None
