# SPDX-License-Identifier: Apache-2.0
"""Keeps the time slices of the pods' GPU contexts as their weights want them."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tegra_device_plugin.agent import nvgpu, timeslices
from tegra_device_plugin.agent.cgroups import member_of
from tegra_device_plugin.agent.nvgpu import ControlNode, Kernel, Tsg
from tegra_device_plugin.agent.pods import Pods
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.sensor import Sensor

State = Literal["weighted", "busy", "unsupported", "failing"]

# nvgpu tells of new contexts; a look in between undoes what a context has set for itself.
LOOK_SECONDS = 5.0
# Between looks at least: a program that opens and closes contexts all the time is not followed each time.
SETTLE_SECONDS = 0.2
# A context is heard of before it is ready to be set, and nothing tells when it is.
NEW_SECONDS = 1.0
CALL_DEADLINE_SECONDS = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slice:
    """A context of a pod that has a weight."""

    uid: str
    tsg: Tsg
    """As it was found."""
    wanted_us: int


class NoControlNodeError(OSError):
    """The board has none."""


class HeldError(OSError):
    """Somebody else has it open."""


class Weights:
    """The policy `burst-share`: whether it is in force (`state`), and the `slices` found at the last look."""

    def __init__(self, host: HostTree, pods: Pods, kernel: Kernel) -> None:
        self.state: State = "unsupported"
        self.slices: tuple[Slice, ...] = ()
        self.observed_at = 0.0
        self._host = host
        self._pods = pods
        self._kernel = kernel
        self._node: ControlNode | None = None
        self._listening: int | None = None
        self._sensor = Sensor(CALL_DEADLINE_SECONDS)
        self._problem_log = ProblemLog()
        self._wake = asyncio.Event()
        self._waited_for = False
        self._found: dict[tuple[int, int], int] = {}

    async def run(self) -> None:
        """Keep the weights in force until cancelled; then put back the time slices that were found."""
        try:
            while True:
                self._wake.clear()
                await self.look()
                await waiting.happens(self._wake, NEW_SECONDS if self._waited_for else LOOK_SECONDS)
                await asyncio.sleep(SETTLE_SECONDS)
        finally:
            await self._leave()

    async def look(self) -> None:
        """Look once, and set what differs."""
        try:
            tsgs, pods = await self._sensor.read(self._list)
            self._listen()
            await self._pods.refresh(set(pods.values()))
            percent = self._percent(pods)
            wanted = timeslices.weighted(tsgs, pods, percent)
            self._remember(tsg for tsg in tsgs if tsg.id in wanted)
            await self._sensor.read(lambda: self._set(tsgs, wanted))
        except OSError as error:
            self._waited_for = False
            self.state = _state_after(error)
            self.slices = ()
            self._problem_log.warn(
                f"GPU time is not divided by weights: {describe_error(error, 'the driver does not answer')}"
            )
            if not isinstance(error, TimeoutError):  # what hangs still uses the node
                self._close()
        else:
            self.state = "weighted"
            self._waited_for = any(percent.get(pods.get(tsg.pid, "")) and not tsg.ready for tsg in tsgs)
            self.slices = tuple(Slice(pods[tsg.pid], tsg, wanted[tsg.id]) for tsg in tsgs if tsg.id in wanted)
            self._problem_log.resolved("GPU time is divided by weights again")
        self.observed_at = asyncio.get_running_loop().time()

    def _remember(self, tsgs: Iterable[Tsg]) -> None:
        """Keep what each context had when it was first seen, for as long as it is there.

        By default that is 1024 us, less on a Nano with R32, and other values where a program has set a
        priority. What is below nvgpu's own least cannot be set again.
        """
        self._found = {
            (tsg.id, tsg.pid): self._found.get((tsg.id, tsg.pid), max(tsg.timeslice_us, nvgpu.LEAST_US))
            for tsg in tsgs
        }

    def _percent(self, pods: Mapping[int, str]) -> dict[str, int]:
        """Weights of pods, as far as they are known."""
        return {uid: self._pods.share(uid).percent for uid in pods.values()}

    def _list(self) -> tuple[list[Tsg], dict[int, str]]:
        """All contexts, and the pods of those processes that are in one."""
        if self._node is None:
            self._node = self._open()
        tsgs = self._node.tsgs()
        found = {tsg.pid: member_of(self._host, tsg.pid) for tsg in tsgs}
        return tsgs, {pid: member.uid for pid, member in found.items() if member}

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
            raise HeldError(
                f"somebody else holds {path}, which only one can: another agent, or a container that was "
                "given the node"
            ) from error

    def _set(self, tsgs: Iterable[Tsg], wanted: Mapping[int, int]) -> None:
        """Set what differs: each call reloads the GPU's list of contexts, and switches it on for that."""
        if self._node is None:
            return
        for tsg in tsgs:
            microseconds = wanted.get(tsg.id, tsg.timeslice_us)
            if microseconds == tsg.timeslice_us:
                continue
            what = f"context {tsg.id} of process {tsg.pid}"
            try:
                if self._node.set_timeslice(tsg, microseconds):
                    logger.debug("%s: %d us", what, microseconds)
            except OSError as error:
                logger.warning("%s: nvgpu refuses %d us: %s", what, microseconds, error.strerror)

    async def _leave(self) -> None:
        """Put back the time slices that were found, and let go of the node."""
        await self._sensor.settle()  # the cancellation may have come within a call
        if self._node is None:
            return
        try:
            tsgs, _ = await self._sensor.read(self._list)
            found = {tsg.id: self._found[tsg.id, tsg.pid] for tsg in tsgs if (tsg.id, tsg.pid) in self._found}
            await self._sensor.read(lambda: self._set(tsgs, found))
        except OSError as error:
            logger.warning("cannot put back the GPU's own time slices: %s", error)
        self._close()

    def _listen(self) -> None:
        """Hear of new contexts."""
        if self._node and self._listening is None:
            self._listening = self._node.fd
            asyncio.get_running_loop().add_reader(self._node.fd, self._opened, self._node)

    def _opened(self, node: ControlNode) -> None:
        try:
            node.clear_event()
        except OSError:  # the next call says what is wrong
            self._stop_listening()
        self._wake.set()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening = None

    def _close(self) -> None:
        self._stop_listening()
        if self._node is not None:
            self._node.close()
            self._node = None


def _state_after(error: OSError) -> State:
    if isinstance(error, HeldError):
        return "busy"
    return "unsupported" if isinstance(error, (NoControlNodeError, nvgpu.UnsupportedError)) else "failing"
