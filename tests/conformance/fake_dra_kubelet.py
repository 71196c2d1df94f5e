# SPDX-License-Identifier: Apache-2.0
"""A SIMULATED kubelet's side of DRA: finds the registration socket, registers, prepares, follows the health.

What it does is read from kubernetes 1.36.4 (pkg/kubelet/pluginmanager, pkg/kubelet/cm/dra). It polls where a
kubelet has inotify.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpc import aio
from tegra_device_plugin.dra import dra_pb2 as api

from tests.conformance.awaited import Awaited
from tests.conformance.fake_kubelet import call, dial

Object = dict[str, Any]

_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_LOOK_SECONDS = 0.02


class FakeDraKubelet(Awaited):
    """Serves nothing: it reads `directory`, as kubelets do. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.refusal = ""
        """Why it refuses drivers; empty: it does not."""
        self.info: api.PluginInfo | None = None
        """Of the driver that is registered."""
        self.registrations = 0
        self.health: list[dict[str, tuple[int, str]]] = []
        """Every message of the health stream: status and text by device."""
        self._channel: aio.Channel | None = None
        self._seen: tuple[int, int] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        (self.directory / "plugins_registry").mkdir(parents=True, exist_ok=True)
        self._tasks = [asyncio.create_task(self._look())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._forget()

    def forget_everything(self) -> None:
        """Begin as a kubelet that has just started."""
        self._seen = None

    def describe(self) -> str:
        return f"files {sorted(str(path.relative_to(self.directory)) for path in self.directory.rglob('*'))}"

    async def until_registered(self, count: int = 1) -> None:
        await self.until(lambda: self.registrations >= count and self.info is not None, "registration")

    async def prepare(self, *claims: Object) -> dict[str, api.NodePrepareResourceResponse]:
        request = api.NodePrepareResourcesRequest(claims=_named(claims))
        answer = await self._call("NodePrepareResources", request, api.NodePrepareResourcesResponse)
        return dict(answer.claims)

    async def unprepare(self, *claims: Object) -> dict[str, str]:
        request = api.NodeUnprepareResourcesRequest(claims=_named(claims))
        answer = await self._call("NodeUnprepareResources", request, api.NodeUnprepareResourcesResponse)
        return {uid: one.error for uid, one in answer.claims.items()}

    async def _call(self, method: str, request: Any, response: Any) -> Any:
        assert self._channel
        return await call(self._channel, method, request, response, service=_SERVICE)

    async def _look(self) -> None:
        socket = self.directory / "plugins_registry" / "gpu.jetson-k3s.github.io-reg.sock"
        while True:
            try:
                status = socket.stat()
                now = (status.st_ino, status.st_ctime_ns)
            except FileNotFoundError:
                now = None
            if now != self._seen:
                # Calls that run end as cancelled: a failed test shows why.
                sys.stderr.write(f"SIMULATED kubelet: registration socket {self._seen} -> {now}\n")
                await self._forget()
                if now and not await self._register(socket):
                    now = None
                self._seen = now
            await asyncio.sleep(_LOOK_SECONDS)

    async def _register(self, socket: Path) -> bool:
        """Read the registration and send its result; False without an answer."""
        async with dial(socket) as channel:
            result, service = api.RegistrationStatusResponse, "pluginregistration.Registration"
            try:
                empty = api.InfoRequest()
                info = await call(channel, "GetInfo", empty, api.PluginInfo, service=service, seconds=1)
                why = self.refusal or ("" if "v1.DRAPlugin" in info.supported_versions else "no v1.DRAPlugin")
                status = api.RegistrationStatus(plugin_registered=not why, error=why)
                await call(channel, "NotifyRegistrationStatus", status, result, service=service, seconds=5)
            except aio.AioRpcError:
                return False
        self.registrations += 1
        if not why:
            assert info.type == "DRAPlugin" and Path(info.endpoint).is_absolute()
            self.info = info
            self._channel = dial(Path(info.endpoint))
            self._tasks.append(asyncio.create_task(self._follow_health(self._channel)))
        self._changed.set()
        return True

    async def _follow_health(self, channel: aio.Channel) -> None:
        rpc = channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            api.NodeWatchResourcesRequest.SerializeToString,
            api.NodeWatchResourcesResponse.FromString,
        )
        with suppress(aio.AioRpcError, aio.UsageError):
            async for message in rpc(api.NodeWatchResourcesRequest()):
                self.health.append(
                    {one.device.device_name: (one.health, one.message) for one in message.devices}
                )
                self._changed.set()

    async def _forget(self) -> None:
        self.info = None
        if self._channel:
            await self._channel.close()
            self._channel = None


def _named(claims: Sequence[Object]) -> list[api.Claim]:
    return [
        api.Claim(
            namespace=one["metadata"]["namespace"], name=one["metadata"]["name"], uid=one["metadata"]["uid"]
        )
        for one in claims
    ]
