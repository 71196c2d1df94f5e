# SPDX-License-Identifier: Apache-2.0
"""A SIMULATED device plugin of another project: it registers once, and lists one device until it ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from tegra_device_plugin.kubelet import kubelet_pb2 as api

from tests.conformance.fake_kubelet import FakeKubelet, refusing_socket

DEVICE = "tegra"  # NVIDIA's plugin has this one on a Jetson


class ForeignPlugin:
    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._server = aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                self._options, api.Empty.FromString, api.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list, api.Empty.FromString, api.ListAndWatchResponse.SerializeToString
            ),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
        )
        self._server.add_insecure_port(f"unix:{socket}")

    async def start(self, kubelet: FakeKubelet, resource: str) -> None:
        await self._server.start()
        request = api.RegisterRequest(version="v1beta1", endpoint=self.socket.name, resource_name=resource)
        async with aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register", api.RegisterRequest.SerializeToString, api.Empty.FromString
            )
            await register(request)
        await kubelet.until(
            lambda: list(kubelet.devices.get(resource, ())) == [DEVICE], f"{resource} of the other plugin"
        )

    async def stop(self, *, killed: bool = False) -> None:
        """End; a process that is killed leaves its socket."""
        await self._server.stop(None)
        if killed:
            refusing_socket(self.socket).close()

    async def _options(self, _request: api.Empty, _context: object) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    async def _list(self, _request: api.Empty, _context: object) -> AsyncIterator[api.ListAndWatchResponse]:
        yield api.ListAndWatchResponse(devices=[api.Device(ID=DEVICE, health="Healthy")])
        await asyncio.Event().wait()


@asynccontextmanager
async def foreign_plugin(
    kubelet: FakeKubelet, resource: str, name: str = "nvidia-gpu.sock"
) -> AsyncIterator[ForeignPlugin]:
    plugin = ForeignPlugin(kubelet.directory / name)
    try:
        await plugin.start(kubelet, resource)
        yield plugin
    finally:
        await plugin.stop()
