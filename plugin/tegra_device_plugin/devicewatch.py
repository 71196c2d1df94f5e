# SPDX-License-Identifier: Apache-2.0
"""Observes the devices of `devices` in the configuration, and advertises them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.devices import DeviceResource
from tegra_device_plugin.sharing import device_nodes
from tegra_device_plugin.sharing.allocation import Resource
from tegra_device_plugin.sharing.device_nodes import Device, Found
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch
from tegra_device_plugin.system.hosttree import HostTree, is_own_shortage
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

# No event reports a network interface, or a socket without a listener. A change is known within 5 s.
POLL_SECONDS = 2.0
SETTLE_SECONDS = 0.2  # udev makes a node, then its links
READ_DEADLINE_SECONDS = 2.0

logger = logging.getLogger(__name__)


class DeviceWatch:
    """Advertises the configured devices as they are now; `observed_at` is the last time.

    A device that vanishes stays in the list as unhealthy, under its name.
    """

    def __init__(
        self,
        root: Path,
        resources: tuple[DeviceResource, ...],
        advertise: Callable[[Iterable[Resource]], None],
    ) -> None:
        self.observed_at = 0.0
        self._root = root
        self._resources = resources
        self._advertise = advertise
        self._devices: Mapping[str, tuple[Device, ...]] = {}
        self._blocking = BlockingCalls(READ_DEADLINE_SECONDS)
        self._failure_log = ProblemLog()
        self._problems: frozenset[str] = frozenset()
        self._wake = asyncio.Event()

    def use(self, resources: tuple[DeviceResource, ...]) -> None:
        """Advertise these resources from now on."""
        before = {one.name: one for one in self._resources}
        self._resources = resources
        kept = {one.name for one in resources if before.get(one.name) == one}
        self._devices = {name: devices for name, devices in self._devices.items() if name in kept}
        self._wake.set()

    async def run(self) -> None:
        """Observe until cancelled."""
        while True:
            resources = self._resources
            watched = (Path(f"{self._root}{path}") for path in device_nodes.directories(resources))
            with DirectoryWatch(*watched, on_change=self._wake.set, names_only=True) as watch:
                while resources is self._resources:
                    self._wake.clear()
                    watch.rearm()
                    await self.observe()
                    if await waiting.happens(self._wake, POLL_SECONDS):
                        await asyncio.sleep(SETTLE_SECONDS)

    async def observe(self) -> None:
        """Observe the devices once, and advertise them."""
        resources, host = self._resources, HostTree(self._root)
        try:
            found = await self._blocking.run(lambda: device_nodes.find(host, resources))
        except OSError as error:
            self._failure_log.warn(f"cannot observe the devices: {describe_error(error, 'the read hangs')}")
            # This process lacks files or memory: the devices keep their health.
            if not is_own_shortage(error):
                self._show(_unknown(self._devices))
        else:
            self._failure_log.resolved("the devices can be observed again")
            self._log_problems(found)
            if resources is self._resources:
                self._show(device_nodes.remember(found, self._devices))
        self.observed_at = asyncio.get_running_loop().time()

    def _show(self, devices: Mapping[str, tuple[Device, ...]]) -> None:
        before = {(name, one.id): one.health for name, all_ in self._devices.items() for one in all_}
        for name, of_resource in devices.items():
            for one in of_resource:
                if before.get((name, one.id)) != one.health:
                    level = logging.INFO if one.health.healthy else logging.WARNING
                    detail = f": {one.health.detail}" if one.health.detail else ""
                    logger.log(level, "%s: %s is %s%s", name, one.id, one.health.reason, detail)
        self._devices = devices
        self._advertise(
            device_nodes.make_resource(one, devices[one.name])
            for one in self._resources
            if one.name in devices
        )

    def _log_problems(self, found: Found) -> None:
        for problem in found.problems:
            if problem not in self._problems:
                logger.warning("%s", problem)
        self._problems = frozenset(found.problems)


def _unknown(devices: Mapping[str, tuple[Device, ...]]) -> Mapping[str, tuple[Device, ...]]:
    health = Health(False, "unknown", "the device could not be observed")
    return {name: tuple(one._replace(health=health) for one in all_) for name, all_ in devices.items()}
