# SPDX-License-Identifier: Apache-2.0
"""Serves the driver's two sockets: dra.sock, and after it the registration socket.

A kubelet finds the registration socket in its directory plugins_registry. The driver makes both sockets again
when one of them was removed or replaced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from tegra_device_plugin.board import health as board_health
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra import dra_pb2 as api
from tegra_device_plugin.dra.claims import ClaimReference, Prepared
from tegra_device_plugin.dra.claimstore import cdi_names
from tegra_device_plugin.dra.preparing import Preparer
from tegra_device_plugin.kubelet import driver_conflict, sockets
from tegra_device_plugin.kubelet.sockets import Handlers, Services, SocketServer, unary
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch, Identity
from tegra_device_plugin.system.durations import Durations
from tegra_device_plugin.system.kubernetes import DRIVER
from tegra_device_plugin.system.waiting import Backoff

# Between checks of the sockets, in seconds. Where inotify works, events come first.
CHECK_SECONDS = 5.0
CHECK_WITHOUT_EVENTS_SECONDS = 0.25
# Between new registration sockets, for a kubelet that rejects the driver: it calls each new socket.
RETRY = Backoff(first=1.0, cap=60.0)
_DIRECTORY_MODE = 0o750

logger = logging.getLogger(__name__)


class DriverRegistration:
    """The registration: `registered`, or `not_ready_reason`."""

    def __init__(self, kubelet: Path, services: Services) -> None:
        self.registered = False
        self.not_ready_reason = "no kubelet has called yet"
        self.registrations = 0
        self.failed_registrations = 0
        self.registration_durations = Durations()
        self.observed_at = 0.0
        self._services = services
        self._socket = driver_conflict.dra_socket(kubelet)
        self._registry = kubelet / "plugins_registry"
        self._registration = self._registry / f"{DRIVER}-reg.sock"
        self._servers: list[SocketServer] = []
        self._wake = asyncio.Event()
        self._called_at: float | None = None
        self._retry = RETRY
        self._renew_at: float | None = None

    async def run(self) -> None:
        """Serve until cancelled; then remove both sockets. Raises OSError where no socket can work."""
        self._check()
        with (
            DirectoryWatch(self._socket.parent, on_change=self._wake.set) as own,
            DirectoryWatch(self._registry, on_change=self._wake.set) as registry,
        ):
            try:
                while True:
                    self._wake.clear()
                    has_events = own.rearm() and registry.rearm()
                    await self._check_sockets()
                    await waiting.happens(self._wake, self._pause(has_events))
            finally:
                await self._stop()

    def _check(self) -> None:
        for path in (self._socket, self._registration):
            sockets.check_path(path)
            if sockets.accepts(path):
                raise OSError(f"another instance of the driver serves at {path}: end it first")
        self._registry.mkdir(exist_ok=True)

    async def _check_sockets(self) -> None:
        """Make the sockets if one is missing. The kubelet may remove its directories and make them again."""
        self.observed_at = _now()
        if self._servers:
            if not self._is_due() and all(map(_is_there, self._servers)):
                return
        elif self._renew_at is not None and not self._is_due():
            return  # the last start has failed
        if self._servers:
            logger.info("making the sockets again")
            await self._stop()
        self._renew_at = None
        try:
            await self._start()
        except OSError as error:
            await self._stop()
            self._fail(str(error), CHECK_SECONDS)

    async def _start(self) -> None:
        self._socket.parent.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        self._registry.mkdir(exist_ok=True)
        both = (
            SocketServer(self._socket, self._services),
            SocketServer(
                self._registration, registration_services(self._socket, self._on_call, self._on_status)
            ),
        )
        for one in both:
            self._servers.append(one)
            await one.start()
        logger.info("serving at %s", self._socket)

    async def _stop(self) -> None:
        servers, self._servers = self._servers, []
        self.registered, self.not_ready_reason = False, "no kubelet has called yet"
        # The kubelet forgets the driver with its registration socket, so this socket is removed first.
        for one in reversed(servers):
            await one.stop()

    def _on_call(self) -> None:
        self._called_at = _now()

    def _on_status(self, registered: bool, error: str) -> None:
        """Store the kubelet's result. After an error, a new socket makes the kubelet call again."""
        if self._called_at is not None:
            self.registration_durations.observe(_now() - self._called_at)
            self._called_at = None
        self.registered = registered
        if registered:
            self.registrations += 1
            self._retry = self._retry.reset()
            self._renew_at = None
            logger.info("registered with the kubelet as %s", DRIVER)
        else:
            self._fail(f"the kubelet rejects the driver: {error}")

    def _fail(self, reason: str, max_seconds: float = RETRY.cap) -> None:
        self.not_ready_reason = reason
        self.failed_registrations += 1
        seconds = min(self._retry.seconds, max_seconds)
        self._renew_at = _now() + seconds
        logger.warning("not registered, next attempt in %.0f s: %s", seconds, reason)
        self._retry = self._retry.longer()
        self._wake.set()

    def _is_due(self) -> bool:
        return self._renew_at is not None and _now() >= self._renew_at

    def _pause(self, has_events: bool) -> float:
        pause = CHECK_SECONDS if has_events else CHECK_WITHOUT_EVENTS_SECONDS
        return pause if self._renew_at is None else max(0.0, min(pause, self._renew_at - _now()))


def registration_services(
    endpoint: Path, on_call: Callable[[], None], on_status: Callable[[bool, str], None]
) -> Services:
    """Give the service of the registration socket.

    `on_call` is called at the kubelet's first call; `on_status` gets the kubelet's result and its error.
    """

    async def get_info(_request: object, _: object) -> api.PluginInfo:
        on_call()
        return api.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=SUPPORTED
        )

    async def notify(status: api.RegistrationStatus, _: object) -> api.RegistrationStatusResponse:
        on_status(status.plugin_registered, status.error)
        return api.RegistrationStatusResponse()

    methods: Handlers = {
        "GetInfo": unary(get_info, api.InfoRequest, api.PluginInfo),
        "NotifyRegistrationStatus": unary(notify, api.RegistrationStatus, api.RegistrationStatusResponse),
    }
    return {"pluginregistration.Registration": methods}


def _is_there(server: SocketServer) -> bool:
    return server.identity is not None and Identity.of(server.path) == server.identity


def _now() -> float:
    return asyncio.get_running_loop().time()


# The service has another name than in GetInfo (kubelet, pkg/apis/*/types.go). Kubelets since 1.34 know it.
_DRA_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
SUPPORTED = ("v1.DRAPlugin", *_HEALTH_SERVICES)

# The kubelet treats older health as unknown. The board is observed every 5 s, and an observation can take 3
# s.
_HEALTH_SECONDS = 30


@dataclass(frozen=True)
class ObservedHealth:
    """The last health of the GPU, None before the first, and when it was observed (Unix seconds)."""

    health: Health | None = None
    at: int = 0


class HealthFeed:
    """The health of all devices, for the streams of kubelets."""

    def __init__(self, pool: str, devices: Sequence[str]) -> None:
        self.current = ObservedHealth()
        self.changed = asyncio.Event()
        self._pool = pool
        self._devices = devices

    def update(self, gpu_health: Health) -> None:
        self.current = ObservedHealth(gpu_health, int(time.time()))
        self.changed.set()
        # A new event each time, so no stream clears it for the others.
        self.changed = asyncio.Event()

    def message(self) -> api.NodeWatchResourcesResponse:
        gpu = self.current.health
        status, text = api.UNKNOWN, "not observed yet"
        if gpu and gpu.reason != board_health.UNKNOWN.reason:
            status = api.HEALTHY if gpu.healthy else api.UNHEALTHY
        if gpu:
            text = "" if gpu.healthy else f"{gpu.reason}: {gpu.detail}"
        return api.NodeWatchResourcesResponse(
            devices=[
                api.DeviceHealth(
                    device=api.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health=status,
                    last_updated_time=self.current.at,
                    health_check_timeout_seconds=_HEALTH_SECONDS,
                    message=text,
                )
                for name in self._devices
            ]
        )


def dra_services(preparer: Preparer, feed: HealthFeed, pool: str) -> Services:
    async def prepare(
        request: api.NodePrepareResourcesRequest, _: object
    ) -> api.NodePrepareResourcesResponse:
        found = await preparer.prepare(_references(request.claims))
        return api.NodePrepareResourcesResponse(
            claims={uid: _prepared(one, pool) for uid, one in found.items()}
        )

    async def unprepare(
        request: api.NodeUnprepareResourcesRequest, _: object
    ) -> api.NodeUnprepareResourcesResponse:
        found = await preparer.unprepare(_references(request.claims))
        return api.NodeUnprepareResourcesResponse(
            claims={uid: api.NodeUnprepareResourceResponse(error=reason) for uid, reason in found.items()}
        )

    async def watch(_request: object, _: object) -> AsyncIterator[api.NodeWatchResourcesResponse]:
        while True:
            following = feed.changed
            yield feed.message()
            await following.wait()

    plugin: Handlers = {
        "NodePrepareResources": unary(
            prepare, api.NodePrepareResourcesRequest, api.NodePrepareResourcesResponse
        ),
        "NodeUnprepareResources": unary(
            unprepare, api.NodeUnprepareResourcesRequest, api.NodeUnprepareResourcesResponse
        ),
    }
    streams: Handlers = {
        "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
            watch, api.NodeWatchResourcesRequest.FromString, api.NodeWatchResourcesResponse.SerializeToString
        )
    }
    return {_DRA_SERVICE: plugin} | dict.fromkeys(_HEALTH_SERVICES, streams)


def _references(claims: Sequence[api.Claim]) -> list[ClaimReference]:
    return [ClaimReference(one.namespace, one.name, one.uid) for one in claims]


def _prepared(found: Prepared | str, pool: str) -> api.NodePrepareResourceResponse:
    if isinstance(found, str):
        return api.NodePrepareResourceResponse(error=found)
    return api.NodePrepareResourceResponse(
        devices=[
            api.Device(
                request_names=[one.request],
                pool_name=pool,
                device_name=one.name,
                cdi_device_ids=cdi_names(found.claim.uid, one),
                share_id=one.share,
            )
            for one in found.devices
        ]
    )
