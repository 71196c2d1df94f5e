# SPDX-License-Identifier: Apache-2.0
"""A SIMULATED kubelet: the device manager's side of v1beta1, three generations of it, with faults to order.

What each generation does is read from kubernetes/kubernetes pkg/kubelet/cm/devicemanager (1.20.2, 1.34.2,
1.36.4 and 1.37.0: manager, and the server, client and handler of plugin/v1beta1). Nothing is a mock of the
plugin: this end speaks real gRPC.
"""

import asyncio
import base64
import json
import os
import socket
import stat
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import grpc
from grpc import aio
from tegra_device_plugin.kubelet import kubelet_pb2 as api

from tests.conformance.awaited import SECONDS, Awaited

Generation = Literal["1.20", "1.26", "1.37"]
"""1.20 answers Register before it dials. 1.26 dials inside Register, and when an older stream of a resource
ends, it drops that resource's newest client; so does 1.36. 1.37 keys clients by socket path as well: a
resource exists as long as one of them, and a path that it still tracks is refused."""
GENERATIONS: tuple[Generation, ...] = ("1.20", "1.26", "1.37")

Fault = Literal["none", "refuse", "hang", "late", "never dial"]
"""`late`: one registration is answered only after `release`."""

Response = TypeVar("Response")

CHECKPOINT = "kubelet_internal_checkpoint"


@dataclass
class Client:
    resource: str
    path: Path
    channel: aio.Channel
    options: api.DevicePluginOptions
    lists: list[list[tuple[str, str]]] = field(default_factory=list)
    """Every message: device ids and their health."""
    live: bool = False
    dropped: bool = False
    """The kubelet reads no list of it any more, also none that has arrived already."""
    task: asyncio.Task[None] | None = None


class FakeKubelet(Awaited):
    """Serves kubelet.sock in `directory`. Every change notifies `until`.

    Use as a context manager: pytest cannot end while one serves (gRPC's poller waits for it).
    """

    def __init__(self, directory: Path, generation: Generation = "1.20") -> None:
        super().__init__()
        self.directory = directory
        self.generation = generation
        self.fault: Fault = "none"
        self.requests: list[api.RegisterRequest] = []
        self.clients: dict[str, Client] = {}
        self.devices: dict[str, dict[str, str]] = {}
        """Per resource the health of its devices, as the node's status is made from."""
        self.history: list[int] = []
        """Every number of allocatable devices there was."""
        self.known: frozenset[str] = frozenset()
        """Resources of the checkpoint that it has read at its start."""
        self.entries: dict[tuple[str, tuple[str, ...]], bytes] = {}
        """By resource and devices the answer to Allocate, as the checkpoint has it."""
        self.release = asyncio.Event()
        self._all: list[Client] = []
        self._endpoints: dict[str, dict[Path, Client]] = {}
        """Of 1.37, per resource."""
        self._server: aio.Server | None = None

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop(leave_socket=False)

    @property
    def socket(self) -> Path:
        return self.directory / "kubelet.sock"

    async def start(self) -> None:
        """Read the checkpoint, clear the directory as this generation does, then listen."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.known = self._read_checkpoint()
        for path in self.directory.iterdir():
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a plugin has just removed its own socket
                continue
            old_habit = self.generation == "1.20" and not stat.S_ISDIR(mode) and path.name != CHECKPOINT
            if old_habit or stat.S_ISSOCK(mode):
                path.unlink(missing_ok=True)
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, api.RegisterRequest.FromString, api.Empty.SerializeToString
        )
        self._server = aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self, *, leave_socket: bool = True) -> None:
        """End as a process does: every connection breaks; the socket stays on disk and refuses."""
        clients, self._all = self._all, []
        self.clients.clear()
        self._endpoints.clear()
        for client in clients:
            if client.task:
                client.task.cancel()
                await asyncio.wait([client.task])
            await client.channel.close()
        if self._server:
            await self._server.stop(None)
            self._server = None
        self.devices.clear()  # a message may have come until now
        if leave_socket:
            refusing_socket(self.socket)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def allocatable(self, resource: str | None = None) -> int:
        """Healthy devices, as in the node's status; of all resources unless one is named."""
        return sum(
            list(devices.values()).count("Healthy")
            for name, devices in self.devices.items()
            if resource in (None, name)
        )

    async def until_allocatable(self, count: int = 1, seconds: float = SECONDS) -> None:
        await self.until(lambda: self.allocatable() == count, f"allocatable == {count}", seconds)

    def admits(self, resource: str) -> bool:
        """Whether a pod with one of that resource is admitted now: one that it does not know is no reason."""
        return resource not in self.known | self.devices.keys() or self.allocatable(resource) > 0

    def describe(self) -> str:
        files = (
            sorted(path.name for path in self.directory.iterdir())
            if self.directory.is_dir()
            else "no directory"
        )
        return f"requests {[one.endpoint for one in self.requests]}, clients {self.clients}, files {files}"

    @property
    def client(self) -> Client:
        (client,) = self.clients.values()
        return client

    @property
    def live(self) -> list[Client]:
        """The clients with a stream: also those that it does not use any more."""
        return [client for client in self._all if client.live]

    async def cut(self) -> None:
        """Break the connection, as a fault of either side would; the kubelet goes on."""
        await self.client.channel.close()

    async def allocate(self, *containers: Sequence[str], resource: str | None = None) -> api.AllocateResponse:
        """Ask for devices of a resource (the only one), one list of ids per container."""
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        client = self.clients[resource] if resource else self.client
        answer = await call(client.channel, "Allocate", request, api.AllocateResponse)
        for ids, one in zip(containers, answer.container_responses, strict=True):
            self.entries[client.resource, tuple(ids)] = one.SerializeToString()
        self._write_checkpoint()
        return answer

    def forget(self, resource: str, ids: Sequence[str]) -> None:
        """Let a container be gone: the next checkpoint does not have it."""
        del self.entries[resource, tuple(ids)]

    async def start_container(self, resource: str, ids: Sequence[str]) -> None:
        """Do what comes before each start of a container: a call, if the resource requires it."""
        client = self.clients[resource]
        if client.options.pre_start_required:
            request = api.PreStartContainerRequest(devices_ids=ids)
            await call(client.channel, "PreStartContainer", request, api.PreStartContainerResponse)

    def _read_checkpoint(self) -> frozenset[str]:
        """Give the registered resources; none where the checkpoint is missing, or its checksum is wrong."""
        try:
            content = json.loads(self.directory.joinpath(CHECKPOINT).read_text())
        except FileNotFoundError:
            return frozenset()
        registered = content.get("Data", {}).get("RegisteredDevices") or {}
        return frozenset(registered) if content.get("Checksum") == _checksum(registered) else frozenset()

    def _write_checkpoint(self) -> None:
        registered = {
            resource: [device for device, health in devices.items() if health == "Healthy"]
            for resource, devices in self.devices.items()
        }
        entries = [
            {
                "PodUID": str(uuid.uuid5(uuid.NAMESPACE_OID, ids[0])),
                "ContainerName": "main",
                "ResourceName": resource,
                "DeviceIDs": {"-1": ids},
                "AllocResp": base64.b64encode(response).decode(),
            }
            for (resource, ids), response in self.entries.items()
        ]
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
        content = {"Data": data, "Checksum": _checksum(registered)}
        self.directory.joinpath(CHECKPOINT).write_text(json.dumps(content))

    async def _register(
        self, request: api.RegisterRequest, context: aio.ServicerContext[Any, Any]
    ) -> api.Empty:
        self.requests.append(request)
        self._changed.set()
        if self.fault == "refuse":
            await context.abort(grpc.StatusCode.UNKNOWN, "ordered to refuse")
        if self.fault == "hang":
            await asyncio.Event().wait()
        if self.fault == "late":
            self.fault = "none"
            await self.release.wait()
        path = self.directory / request.endpoint
        if self.fault == "never dial":
            return api.Empty()
        # Kubelets before 1.26 name the socket's path as the authority, later ones "localhost".
        authority = str(path) if self.generation == "1.20" else "localhost"
        client = Client(request.resource_name, path, dial(path, authority), request.options)
        self._all.append(client)
        if self.generation != "1.20":
            try:
                client.options = await call(
                    client.channel, "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions
                )
            except aio.AioRpcError as error:
                await context.abort(grpc.StatusCode.UNKNOWN, f"cannot dial back: {error.details()}")
        if self.generation == "1.37":
            endpoints = self._endpoints.setdefault(client.resource, {})
            if path in endpoints:
                await context.abort(grpc.StatusCode.UNKNOWN, f"device plugin already connected: {path}")
            endpoints[path] = client
        self.clients[client.resource] = client
        client.task = asyncio.ensure_future(self._listen(client))
        return api.Empty()

    async def _listen(self, client: Client) -> None:
        try:
            async for message in watch(client.channel):
                if client.dropped:
                    break
                client.live = True
                client.lists.append([(device.ID, device.health) for device in message.devices])
                self.devices[client.resource] = dict(client.lists[-1])
                self._write_checkpoint()
                self._note()
        except (aio.AioRpcError, aio.UsageError):
            pass  # cut, while listening or just before
        finally:
            await self._disconnected(client)

    async def _disconnected(self, client: Client) -> None:
        client.live = False
        if client.resource not in self.clients:  # this kubelet is ending
            return
        current = self.clients[client.resource]
        if self.generation == "1.37":
            endpoints = self._endpoints[client.resource]
            del endpoints[client.path]
            if endpoints:
                self.clients[client.resource] = next(iter(endpoints.values()))
            else:
                self._mark_unhealthy(client.resource)
        elif current is client:
            self._mark_unhealthy(client.resource)
        elif self.generation == "1.26":
            current.live, current.dropped = False, True
            await current.channel.close()  # found by resource name alone: the newcomer is dropped
        self._note()

    def _mark_unhealthy(self, resource: str) -> None:
        self.devices[resource] = dict.fromkeys(self.devices.get(resource, ()), "Unhealthy")

    def _note(self) -> None:
        if not self.history or self.history[-1] != self.allocatable():
            self.history.append(self.allocatable())
        self._changed.set()


def _checksum(registered: dict[str, list[str]]) -> int:
    """Give a checksum; the kubelet's is FNV-32 over Go's names of types."""
    return zlib.crc32(json.dumps(registered).encode())


def dial(path: Path, authority: str = "localhost") -> aio.Channel:
    options = [("grpc.default_authority", authority), ("grpc.use_local_subchannel_pool", 1)]
    return aio.insecure_channel(f"unix:{path}", options=options)


def watch(channel: aio.Channel) -> AsyncIterator[api.ListAndWatchResponse]:
    rpc = channel.unary_stream(
        "/v1beta1.DevicePlugin/ListAndWatch", api.Empty.SerializeToString, api.ListAndWatchResponse.FromString
    )
    return aiter(rpc(api.Empty()))


async def call(
    channel: aio.Channel,
    method: str,
    request: Any,
    response: type[Response],
    *,
    service: str = "v1beta1.DevicePlugin",
    seconds: float = SECONDS,
) -> Response:
    """Call one of the plugin's methods; fails after so many seconds."""
    rpc = channel.unary_unary(
        f"/{service}/{method}",
        type(request).SerializeToString,
        response.FromString,  # type: ignore[attr-defined] # every message has it
    )
    answer: Response = await rpc(request, timeout=seconds)
    return answer


async def refusal(asking: Awaitable[object]) -> str:
    """Give the reason for which a call fails, as it must."""
    try:
        await asking
    except aio.AioRpcError as error:
        return error.details() or ""
    raise AssertionError("it was not refused")


def refusing_socket(path: Path) -> socket.socket:
    """Put a socket file at `path` without a listener; it refuses until `listen`."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(os.fspath(path))
    return bound
