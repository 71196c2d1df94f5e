# SPDX-License-Identifier: Apache-2.0
"""A registrar for each resource that is advertised, from its first offer to its last."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tegra_device_plugin.kubelet import sockets
from tegra_device_plugin.kubelet.registrar import Registrar
from tegra_device_plugin.sharing.advertised import Advertised
from tegra_device_plugin.sharing.offer import Served
from tegra_device_plugin.system.counters import Counters
from tegra_device_plugin.system.directorywatch import DirectoryWatch


class Registrars:
    """Keeps all that is advertised registered with whatever kubelet is there."""

    def __init__(self, directory: Path, advertised: Advertised, counted: Counters) -> None:
        self.directory = directory
        self._advertised = advertised
        self._counted = counted
        self._running: dict[Served, tuple[Registrar, asyncio.Task[None]]] = {}
        self._was_registered = False
        self._wake = asyncio.Event()
        advertised.on_publish = self._wake.set

    @property
    def looked_at(self) -> float:
        """When the one that looked longest ago did; now, if there is none. Seconds of the loop's clock."""
        return min((one.looked_at for one in self._all), default=asyncio.get_running_loop().time())

    @property
    def connected(self) -> bool:
        """True while the kubelet is listening to all that is advertised."""
        return bool(self._running) and all(one.connected for one in self._all)

    @property
    def streams(self) -> int:
        """Open streams, of all registrations."""
        return sum(one.streams for one in self._all)

    async def run(self) -> None:
        """Keep all registered until cancelled; then end the streams and remove the sockets.

        Raises OSError when no socket in the directory can ever work.
        """
        sockets.check_length(self.directory)
        sockets.sweep(self.directory)
        with DirectoryWatch(self.directory, self._wake_all) as watch:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._wake.clear()
                    await self._follow(tasks, watch)
                    await self._wake.wait()

    async def _follow(self, tasks: asyncio.TaskGroup, watch: DirectoryWatch) -> None:
        """Begin with what is new in the offers, after the end of what is not in them any more."""
        offered = {offer.served for offer in self._advertised.offers.values()}
        self._was_registered |= any(one.was_registered for one in self._all)
        gone = [self._running.pop(served)[1] for served in self._running.keys() - offered]
        for task in gone:
            task.cancel()
        if gone:
            await asyncio.wait(gone)
        for served in sorted(offered - self._running.keys()):
            registrar = Registrar(
                served,
                self.directory,
                watch,
                self._advertised,
                self._counted,
                was_registered=self._was_registered,
            )
            self._running[served] = registrar, tasks.create_task(registrar.run())

    @property
    def _all(self) -> list[Registrar]:
        return [registrar for registrar, _ in self._running.values()]

    def _wake_all(self) -> None:
        for one in self._all:
            one.wake()
