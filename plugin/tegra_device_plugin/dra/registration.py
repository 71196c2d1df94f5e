# SPDX-License-Identifier: Apache-2.0
"""Registers the driver with the kubelet: serves dra.sock and, after it, the registration socket.

A kubelet finds the registration socket in its directory plugins_registry. The driver makes both sockets again
when one of them was removed or replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from tegra_device_plugin.config.names import DRIVER
from tegra_device_plugin.dra import pluginregistration_pb2 as messages
from tegra_device_plugin.dra.server import SUPPORTED
from tegra_device_plugin.kubelet import driver_conflict, sockets
from tegra_device_plugin.kubelet.registration import Backoff
from tegra_device_plugin.kubelet.sockets import Services, SocketServer
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch, Identity

# Between checks of the sockets, in seconds. Where inotify works, events come first.
CHECK_SECONDS = 5.0
CHECK_WITHOUT_EVENTS_SECONDS = 0.25
# Between new registration sockets, for a kubelet that refuses the driver: it calls each new one.
RETRY = Backoff(first=1.0, cap=60.0)
_DIRECTORY_MODE = 0o750

logger = logging.getLogger(__name__)


class DriverRegistration:
    """Whether the kubelet has `registered` the driver, and `why_not`."""

    def __init__(self, kubelet: Path, services: Services) -> None:
        self.registered = False
        self.why_not = "no kubelet has called yet"
        self.registrations = 0
        self.failed_registrations = 0
        self.observed_at = 0.0
        self._services = services
        self._socket = driver_conflict.dra_socket(kubelet)
        self._registry = kubelet / "plugins_registry"
        self._registration = self._registry / f"{DRIVER}-reg.sock"
        self._servers: list[SocketServer] = []
        self._wake = asyncio.Event()
        self._first = asyncio.Event()
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
                    has_events = own.rearm() and registry.rearm()
                    await self._check_sockets()
                    await waiting.happens(self._wake, self._pause(has_events))
            finally:
                await self._stop()

    async def attempted(self, seconds: float) -> None:
        """Wait until a kubelet has called for the first time, for so many seconds at most."""
        await waiting.happens(self._first, seconds)

    def _check(self) -> None:
        for path in (self._socket, self._registration):
            sockets.check_path(path)
            if sockets.accepts(path):
                raise OSError(f"another instance of the driver serves at {path}: end it first")
        self._registry.mkdir(exist_ok=True)

    async def _check_sockets(self) -> None:
        """Make the sockets if one is missing. The kubelet may remove its directories and make them again."""
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
            SocketServer(self._registration, registration_services(self._socket, self._on_status)),
        )
        for one in both:
            self._servers.append(one)
            await one.start()
        logger.info("serving at %s", self._socket)

    async def _stop(self) -> None:
        servers, self._servers = self._servers, []
        self.registered, self.why_not = False, "no kubelet has called yet"
        # The kubelet forgets the driver with its registration socket, so that one goes first.
        for one in reversed(servers):
            await one.stop()

    def _on_status(self, registered: bool, error: str) -> None:
        """Note the kubelet's answer. If it refuses, a new socket makes it call again."""
        self.registered = registered
        self._first.set()
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

    def _pause(self, has_events: bool) -> float:
        pause = CHECK_SECONDS if has_events else CHECK_WITHOUT_EVENTS_SECONDS
        return pause if self._renew_at is None else max(0.0, min(pause, self._renew_at - _now()))


def registration_services(endpoint: Path, on_status: Callable[[bool, str], None]) -> Services:
    """Give the service of the registration socket; `on_status` gets the kubelet's result and its error."""

    async def get_info(_request: object, _: object) -> messages.PluginInfo:
        return messages.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=SUPPORTED
        )

    async def notify(status: messages.RegistrationStatus, _: object) -> messages.RegistrationStatusResponse:
        on_status(status.plugin_registered, status.error)
        return messages.RegistrationStatusResponse()

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetInfo": grpc.unary_unary_rpc_method_handler(
            get_info, messages.InfoRequest.FromString, messages.PluginInfo.SerializeToString
        ),
        "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
            notify,
            messages.RegistrationStatus.FromString,
            messages.RegistrationStatusResponse.SerializeToString,
        ),
    }
    return {"pluginregistration.Registration": methods}


def _is_there(server: SocketServer) -> bool:
    return server.identity is not None and Identity.of(server.path) == server.identity


def _now() -> float:
    return asyncio.get_running_loop().time()
