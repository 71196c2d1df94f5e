# SPDX-License-Identifier: Apache-2.0
"""Keeps both sockets where the kubelet finds them: first the API's, then the one that tells it of the API.

Facts are compared, as for the device plugin: a socket that is not the own one any more is made again. A
kubelet that starts finds the registration socket by itself.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tegra_device_plugin.config.dra import DRIVER
from tegra_device_plugin.dra import server
from tegra_device_plugin.kubelet import driver_conflict, sockets
from tegra_device_plugin.kubelet.registration import Backoff
from tegra_device_plugin.kubelet.sockets import Services, SocketServer
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch, Identity

# Between looks, in seconds: where changes are heard by events this is the safety net.
LOOK_SECONDS = 5.0
LOOK_WITHOUT_EVENTS_SECONDS = 0.25
# Between new registration sockets, to a kubelet that refuses: it looks at each new one.
RETRY = Backoff(first=1.0, cap=60.0)
_DIRECTORY_MODE = 0o750

logger = logging.getLogger(__name__)


class Presence:
    """The driver as its kubelet sees it. `registered`: the kubelet has said so; `why_not` it has not."""

    def __init__(self, kubelet: Path, services: Services) -> None:
        self.registered = False
        self.why_not = "no kubelet has asked yet"
        self.registrations = 0
        self.failed_registrations = 0
        self.observed_at = 0.0
        self._services = services
        self._socket = driver_conflict.dra_socket(kubelet)
        self._registry = kubelet / "plugins_registry"
        self._registration = self._registry / f"{DRIVER}-reg.sock"
        self._servers: list[SocketServer] = []
        self._wake = asyncio.Event()
        self._retry = RETRY
        self._renew_at: float | None = None

    async def run(self) -> None:
        """Serve until cancelled; then remove both sockets. Raises OSError where no socket can work."""
        self._check()
        with (
            DirectoryWatch(self._socket.parent, self._wake.set) as own,
            DirectoryWatch(self._registry, self._wake.set) as registry,
        ):
            try:
                while True:
                    self._wake.clear()
                    heard = own.rearm() and registry.rearm()
                    await self._look()
                    await waiting.happens(self._wake, self._pause(heard))
            finally:
                await self._stop()

    def _check(self) -> None:
        for path in (self._socket, self._registration):
            sockets.check_path(path)
            if sockets.accepts(path):
                raise OSError(f"another instance of the driver serves at {path}: end it first")
        self._registry.mkdir(exist_ok=True)

    async def _look(self) -> None:
        """Make what is missing. The kubelet's directory of plugins goes and comes with the kubelet's own."""
        self.observed_at = _now()
        sockets.check_mount(self._registry)
        if self._servers and not self._is_due() and all(_is_there(one) for one in self._servers):
            return
        if self._servers:
            logger.info("making the sockets again")
            await self._stop()
        self._renew_at = None
        try:
            await self._start()
        except OSError as error:
            await self._stop()
            self._fail(str(error))

    async def _start(self) -> None:
        self._socket.parent.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        self._registry.mkdir(exist_ok=True)
        both = (
            SocketServer(self._socket, self._services),
            SocketServer(self._registration, server.registration_services(self._socket, self._heard)),
        )
        for one in both:
            self._servers.append(one)
            await one.start()
        logger.info("serving at %s", self._socket)

    async def _stop(self) -> None:
        servers, self._servers = self._servers, []
        self.registered, self.why_not = False, "no kubelet has asked yet"
        # The kubelet forgets the driver with its registration socket, so that one goes first.
        for one in reversed(servers):
            await one.stop()

    def _heard(self, registered: bool, error: str) -> None:
        """Take the kubelet's word; where it refuses, a new socket makes it look again."""
        self.registered = registered
        if registered:
            self.registrations += 1
            self._retry = self._retry.reset()
            self._renew_at = None
            logger.info("registered with the kubelet as %s", DRIVER)
        else:
            self._fail(f"the kubelet refuses the driver: {error}")

    def _fail(self, why: str) -> None:
        self.why_not = why
        self.failed_registrations += 1
        self._renew_at = _now() + self._retry.seconds
        logger.warning("not registered, next attempt in %.0f s: %s", self._retry.seconds, why)
        self._retry = self._retry.longer()
        self._wake.set()

    def _is_due(self) -> bool:
        return self._renew_at is not None and _now() >= self._renew_at

    def _pause(self, heard: bool) -> float:
        pause = LOOK_SECONDS if heard else LOOK_WITHOUT_EVENTS_SECONDS
        return pause if self._renew_at is None else max(0.0, min(pause, self._renew_at - _now()))


def _is_there(server: SocketServer) -> bool:
    return server.identity is not None and Identity.of(server.path) == server.identity


def _now() -> float:
    return asyncio.get_running_loop().time()
