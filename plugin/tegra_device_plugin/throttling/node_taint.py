# SPDX-License-Identifier: Apache-2.0
"""Keeps the taint of the node as the board's sensors want it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.system.api_server import REQUEST_SECONDS, ApiServer, ServerError, server_errors
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog, brief, describe_error
from tegra_device_plugin.system.waiting import Backoff, BlockingCalls
from tegra_device_plugin.throttling import taints, throttle_sensors
from tegra_device_plugin.throttling.throttle_sensors import Reading

POLL_SECONDS = 5.0
SENSORS_SECONDS = 3.0
# A read and a write.
WRITE_SECONDS = 2 * REQUEST_SECONDS
# For the removal at a stop. The pod's terminationGracePeriodSeconds is longer.
STOP_SECONDS = 8.0
# Between checks that nobody else has set or removed the taint.
CHECK_SECONDS = 300.0
RETRY = Backoff(first=1.0, cap=60.0)

logger = logging.getLogger(__name__)


@dataclass
class TaintWrites:
    set: int = 0
    removed: int = 0
    failures: int = 0


class NodeTaint:
    """The taint of one node."""

    def __init__(self, root: Path, remove_after: float) -> None:
        """`remove_after`: seconds without throttling after which the taint is removed."""
        self.throttled = False
        self.is_set: bool | None = None
        """By the API server's last answer; None before one."""
        self.observed_at = 0.0
        self.writes = TaintWrites()
        self._host = HostTree(root)
        self._remove_after = remove_after
        self._blocking = BlockingCalls(SENSORS_SECONDS)
        self._reading: Reading | None = None
        self._throttled_at: float | None = None
        self._reason = ""
        self._retry = RETRY
        self._check_at = 0.0
        self._sensor_log, self._server_log = ProblemLog(), ProblemLog()

    async def run(self, server: ApiServer) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            now = self.observed_at = clock()
            await self._observe(now)
            wanted = self._wanted(now)
            if now >= self._check_at or (wanted != self.is_set and self._retry == RETRY):
                await self._reconcile(server, now)
            await asyncio.sleep(POLL_SECONDS)

    async def withdraw(self, server: ApiServer) -> None:
        """Remove the taint, as nothing removes it later. Logs a warning if the taint stays."""
        if self.is_set is False:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while True:
                    try:
                        await self._apply(server, wanted=False, reason="this process stops")
                    except ServerError as error:
                        if not error.outdated:
                            raise
                    else:
                        return
        except OSError as error:
            reason = describe_error(error, f"no answer within {STOP_SECONDS:.0f} s")
            logger.warning("the taint %s may stay on node %s: %s", taints.KEY, server.node, reason)

    def _wanted(self, now: float) -> bool:
        return taints.is_wanted(self._throttled_at, now, self._remove_after)

    async def _observe(self, now: float) -> None:
        """Read the sensors. While they cannot be read, the board does not count as throttled."""
        try:
            reading = await self._blocking.run(lambda: throttle_sensors.read(self._host))
        except (OSError, TimeoutError) as error:
            self.throttled = False
            self._sensor_log.warn(f"the sensors cannot be read: {describe_error(error, 'a sensor hangs')}")
            return
        self._sensor_log.resolved("the sensors can be read again")
        if self._reading is None:
            self._log_sensors(reading)
        found = throttle_sensors.reasons(reading, self._reading)
        self._reading, self.throttled = reading, bool(found)
        if found:
            self._throttled_at, self._reason = now, brief(found)

    def _log_sensors(self, reading: Reading) -> None:
        if reading.cooling or reading.overcurrent:
            found = (len(reading.cooling), len(reading.overcurrent))
            logger.info("watching %d cooling devices and %d over-current alarms", *found)
        else:
            logger.warning(
                "this board has no cooling device that slows it down, and no over-current alarm: the taint "
                "is never set"
            )

    async def _reconcile(self, server: ApiServer, now: float) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                if self.is_set is None and self._throttled_at is None:
                    await self._adopt(server, now)
                wanted = self._wanted(now)
                silence = f"not throttled for {self._remove_after:.0f} s"
                await self._apply(server, wanted=wanted, reason=self._reason if wanted else silence)
        except OSError as error:
            if not (isinstance(error, ServerError) and error.outdated):
                self.writes.failures += 1
                reason = describe_error(error, f"no answer within {WRITE_SECONDS:.0f} s")
                self._server_log.warn(f"the node's taints cannot be kept: {reason}")
            self._check_at, self._retry = now + self._retry.seconds, self._retry.longer()
        else:
            self._server_log.resolved("the node's taints are kept again")
            self._check_at, self._retry = now + CHECK_SECONDS, RETRY

    async def _adopt(self, server: ApiServer, now: float) -> None:
        """Take over a taint that a process before this one has left, as after a power loss."""
        node = await server.get_node()
        with server_errors():
            if taints.has_taint(node):
                self._throttled_at, self._reason = now, "there at the start"
                logger.info("the node has the taint %s already", taints.KEY)

    async def _apply(self, server: ApiServer, *, wanted: bool, reason: str) -> None:
        """Set or remove the taint unless the node is so already. Raises OSError."""
        node = await server.get_node()
        with server_errors():
            change = None if taints.has_taint(node) == wanted else taints.patch(node, wanted=wanted)
        if change:
            self.is_set = None  # until the answer
            await server.patch_node(change)
            if wanted:
                self.writes.set += 1
            else:
                self.writes.removed += 1
            logger.info("taint %s %s: %s", taints.KEY, "set" if wanted else "removed", reason)
        self.is_set = wanted
