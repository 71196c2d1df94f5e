# SPDX-License-Identifier: Apache-2.0
"""Sets the time slices of the pods' GPU contexts by the pods' weights.

nvgpu runs busy contexts in rounds, each for its own time slice. So a busy context's share of the time is its
slice divided by the slices of all busy contexts. An idle context costs nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tegra_device_plugin.agent import nvgpu
from tegra_device_plugin.agent.nvgpu import MAX_TIMESLICE_US, MIN_TIMESLICE_US, ControlNode, Kernel, Tsg
from tegra_device_plugin.agent.pods import Pods, members
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

if TYPE_CHECKING:
    from tegra_device_plugin.agent.pod_policies import PodPolicies

State = Literal["weighted", "busy", "unsupported", "failing"]

# 100 % of the weights are a round of 20 ms. Then 5 % is 1 ms, the shortest slice that nvgpu takes.
US_PER_PERCENT = 200

# A new context, or a slice that a program has set for itself, has its own time for so long.
OBSERVE_SECONDS = 1.0
CALL_DEADLINE_SECONDS = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slice:
    """A context of a pod that has a weight."""

    uid: str
    tsg: Tsg
    """The context, with the time slice that the driver reported before."""
    timeslice_us: int
    """The slice in force: the set one, or the context's own where nvgpu has rejected the other."""


class NoControlNodeError(OSError):
    """The board has no control node."""


class NodeBusyError(OSError):
    """Another process has the control node open."""


def timeslices(tsgs: Iterable[Tsg], pods: Mapping[int, str], percent: Mapping[str, int]) -> dict[int, int]:
    """Give microseconds by context id, for the contexts of pods that have a weight.

    `pods` gives a process' pod, `percent` a pod's weight from 1 to 100. A pod's contexts divide its weight
    evenly, also its idle contexts; none gets less than nvgpu's least. A context that is not ready is left
    out.
    """
    owned = {tsg.id: pods[tsg.pid] for tsg in tsgs if tsg.ready and percent.get(pods.get(tsg.pid, ""))}
    contexts = Counter(owned.values())
    return {
        number: min(max(percent[pod] * US_PER_PERCENT // contexts[pod], MIN_TIMESLICE_US), MAX_TIMESLICE_US)
        for number, pod in owned.items()
    }


class Weights:
    """The policies `burst-share` and `per-pod`: their `state`, and the `slices` at the last observation."""

    def __init__(
        self, host: HostTree, pods: Pods, kernel: Kernel, policies: PodPolicies | None = None
    ) -> None:
        """With `policies`, they choose the pods that have a weight."""
        self.state: State = "unsupported"
        self.slices: tuple[Slice, ...] = ()
        self.observed_at = 0.0
        self._host = host
        self._pods = pods
        self._kernel = kernel
        self._policies = policies
        self._node: ControlNode | None = None
        self._blocking = BlockingCalls(CALL_DEADLINE_SECONDS)
        self._problem_log = ProblemLog()
        self._original: dict[tuple[int, int], int] = {}
        self._rejected: set[tuple[Tsg, int]] = set()

    async def run(self) -> None:
        """Keep the weights in force until cancelled; then restore the original time slices."""
        try:
            while True:
                await self.observe()
                await asyncio.sleep(OBSERVE_SECONDS)
        finally:
            await self._restore()

    async def observe(self) -> None:
        """Read the contexts once, and set the slices that differ."""
        try:
            tsgs, pods = await self._blocking.run(self._list)
            await self._pods.refresh(set(pods.values()))
            policies = self._policies
            if policies:
                await policies.refresh(set(pods.values()))
            percent = {
                uid: self._pods.share(uid).percent
                for uid in pods.values()
                if policies is None or policies.weighted(uid)
            }
            wanted = timeslices(tsgs, pods, percent)
            self._save_original(tsg for tsg in tsgs if tsg.id in wanted)
            await self._blocking.run(lambda: self._set(tsgs, wanted))
        except OSError as error:
            self.state = _state_after(error)
            self.slices = ()
            self._problem_log.warn(
                f"GPU time is not divided by weights: {describe_error(error, 'the driver does not answer')}"
            )
            if not isinstance(error, TimeoutError):  # a call that hangs still uses the node
                self._close()
        else:
            self.state = "weighted"
            self.slices = tuple(
                Slice(pods[tsg.pid], tsg, self._effective_us(tsg, wanted[tsg.id]))
                for tsg in tsgs
                if tsg.id in wanted
            )
            self._problem_log.resolved("GPU time is divided by weights again")
        self.observed_at = asyncio.get_running_loop().time()

    def _save_original(self, tsgs: Iterable[Tsg]) -> None:
        """Keep the original slice of each context until the context ends.

        The default is 1024 us, less on a Nano with R32; a program's priority gives other values. A slice
        below nvgpu's own least cannot be restored.
        """
        self._original = {
            (tsg.id, tsg.pid): self._original.get(
                (tsg.id, tsg.pid), max(tsg.timeslice_us, nvgpu.MIN_TIMESLICE_US)
            )
            for tsg in tsgs
        }

    def _list(self) -> tuple[list[Tsg], dict[int, str]]:
        if self._node is None:
            self._node = self._open()
        tsgs = self._node.tsgs()
        found = members(self._host, (tsg.pid for tsg in tsgs))
        return tsgs, {pid: member.uid for pid, member in found.items()}

    def _open(self) -> ControlNode:
        path = nvgpu.find_node(self._host)
        if path is None:
            raise NoControlNodeError(
                f"there is no {' or '.join(nvgpu.NODES)}: this board's driver has no such node (Thor), "
                "or the GPU was not switched on yet"
            )
        try:
            return ControlNode(self._host.real(path), self._kernel)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            raise NodeBusyError(
                f"another process has opened {path}, and nvgpu allows one: another agent, or a container "
                "with access to the node"
            ) from error

    def _effective_us(self, tsg: Tsg, wanted_us: int) -> int:
        return tsg.timeslice_us if (tsg, wanted_us) in self._rejected else wanted_us

    def _set(self, tsgs: Iterable[Tsg], wanted: Mapping[int, int]) -> None:
        """Set the slices that differ: each call switches the GPU on and reloads its list of contexts."""
        rejected: set[tuple[Tsg, int]] = set()
        if self._node is None:
            return
        for tsg in tsgs:
            microseconds = wanted.get(tsg.id, tsg.timeslice_us)
            if microseconds == tsg.timeslice_us:
                continue
            context = f"context {tsg.id} of process {tsg.pid}"
            try:
                if self._node.set_timeslice(tsg, microseconds):
                    logger.debug("%s: %d us", context, microseconds)
            except OSError as error:
                rejected.add((tsg, microseconds))
                if (tsg, microseconds) not in self._rejected:  # only at the first observation
                    logger.warning("%s: nvgpu rejects %d us: %s", context, microseconds, error.strerror)
        self._rejected = rejected

    async def _restore(self) -> None:
        await self._blocking.settle()  # the cancellation may have come during a call
        if self._node is None:
            return
        try:
            tsgs, _ = await self._blocking.run(self._list)
            found = {
                tsg.id: self._original[tsg.id, tsg.pid] for tsg in tsgs if (tsg.id, tsg.pid) in self._original
            }
            await self._blocking.run(lambda: self._set(tsgs, found))
        except OSError as error:
            logger.warning("cannot restore the GPU's own time slices: %s", error)
        self._close()

    def _close(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None


def _state_after(error: OSError) -> State:
    if isinstance(error, NodeBusyError):
        return "busy"
    return "unsupported" if isinstance(error, (NoControlNodeError, nvgpu.UnsupportedError)) else "failing"
