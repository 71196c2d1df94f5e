# SPDX-License-Identifier: Apache-2.0
"""The DevicePlugin service: one endpoint, which is one gRPC server on one socket, per registration."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from tegra_device_plugin.kubelet import api_pb2 as api
from tegra_device_plugin.sharing.offer import Offer, RefusedRequestError, preferred
from tegra_device_plugin.system.directorywatch import Identity
from tegra_device_plugin.telemetry.exposition import Counters

SOCKET_PREFIX = "tegra-gpu-"
SOCKET_SUFFIX = ".sock"

# Socket names carry the start of the process, so that two instances can tell which is the newer one, and a
# number per registration: newer kubelets answer a Register of a socket path they still track without
# dialling it.
_STARTED = f"{time.time_ns():016x}"
_NUMBERS = itertools.count()

# Neither is asked of us: replicas are alike, so there is nothing to prefer and nothing to prepare.
OPTIONS = api.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=False)

logger = logging.getLogger(__name__)


class Advertised:
    """The current offer. Whoever follows it gets the latest one."""

    def __init__(self) -> None:
        self.offer: Offer | None = None
        self.next_look = asyncio.Event()
        self.on_publish: Callable[[], None] = lambda: None

    def publish(self, offer: Offer) -> None:
        """Make `offer` the current one."""
        if offer != self.offer:
            self.offer = offer
            self.wake()
            self.on_publish()

    def wake(self) -> None:
        """Let every follower look again."""
        # A fresh event each time: no follower has to clear it for the others.
        self.next_look.set()
        self.next_look = asyncio.Event()


def instance_prefix() -> str:
    """Give what the names of this process' sockets begin with; a newer process' sort after it."""
    return f"{SOCKET_PREFIX}{_STARTED}"


def device_list(offer: Offer) -> bytes:
    """Give the ListAndWatchResponse of an offer, serialised."""
    health = "Healthy" if offer.healthy else "Unhealthy"
    return api.ListAndWatchResponse(
        devices=[api.Device(ID=id_, health=health) for id_ in offer.ids]
    ).SerializeToString()


@functools.lru_cache(maxsize=4)  # half the time of an Allocate would go into making the same message again
def allocation(offer: Offer, containers: int) -> bytes:
    """Give the AllocateResponse for so many containers, serialised. All get the same: there is one GPU."""
    grant = offer.grant
    one = api.ContainerAllocateResponse(
        envs=dict(grant.envs),
        mounts=[
            api.Mount(container_path=m.container, host_path=m.host, read_only=True) for m in grant.mounts
        ],
        devices=[api.DeviceSpec(container_path=n, host_path=n, permissions="rw") for n in grant.device_nodes],
        cdi_devices=[api.CDIDevice(name=name) for name in grant.cdi_devices],
    )
    return api.AllocateResponse(container_responses=[one] * containers).SerializeToString()


class Endpoint:
    """One socket on which a kubelet finds the plugin, for one resource.

    `on_change` is called when a stream opens or ends. `streams` counts the open ListAndWatch streams;
    `dialled` tells whether there was ever one.
    """

    def __init__(
        self,
        directory: Path,
        resource: str,
        advertised: Advertised,
        counted: Counters,
        on_change: Callable[[], None],
    ) -> None:
        self.resource = resource
        self.name = f"{instance_prefix()}-{next(_NUMBERS)}{SOCKET_SUFFIX}"
        self.path = directory / self.name
        self.identity: Identity | None = None
        self.streams = 0
        self.dialled = False
        self._advertised = advertised
        self._counted = counted
        self._on_change = on_change
        self._stopping = False
        self._server = aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", self._handlers()),)
        )

    async def start(self) -> None:
        """Serve the socket; raises OSError if it cannot be made."""
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:  # grpcio says no more than that
            raise OSError(f"cannot listen on {self.path}: is the directory there and writable?") from error
        await self._server.start()
        self.identity = Identity.of(self.path)

    async def stop(self) -> None:
        """End the streams, let running calls finish, remove the socket."""
        self._stopping = True
        self._advertised.wake()
        await self._server.stop(grace=1)
        with suppress(OSError):  # gone with its directory, or removed by gRPC
            self.path.unlink()

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                self._options, api.Empty.FromString, api.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, api.Empty.FromString),
            "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(
                self._preferred_allocation,
                api.PreferredAllocationRequest.FromString,
                api.PreferredAllocationResponse.SerializeToString,
            ),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate, api.AllocateRequest.FromString),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(
                self._pre_start_container,
                api.PreStartContainerRequest.FromString,
                api.PreStartContainerResponse.SerializeToString,
            ),
        }

    async def _options(self, _request: api.Empty, _context: object) -> api.DevicePluginOptions:
        return OPTIONS

    async def _list_and_watch(self, _request: api.Empty, _context: object) -> AsyncIterator[bytes]:
        self.streams += 1
        self.dialled = True
        self._on_change()
        sent: bytes | None = None
        try:
            while not self._stopping:
                next_look = self._advertised.next_look
                offer = self._advertised.offer
                if offer is not None:
                    if offer.resource != self.resource:
                        return
                    message = device_list(offer)
                    if message != sent:
                        yield message
                        sent = message
                await next_look.wait()
        finally:
            self.streams -= 1
            self._on_change()

    async def _preferred_allocation(
        self, request: api.PreferredAllocationRequest, _context: object
    ) -> api.PreferredAllocationResponse:
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(
                    deviceIDs=preferred(
                        one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                    )
                )
                for one in request.container_requests
            ]
        )

    async def _allocate(self, request: api.AllocateRequest, context: aio.ServicerContext[Any, Any]) -> bytes:
        offer = self._advertised.offer
        assert offer is not None  # noqa: S101 - no endpoint without an offer, and none is ever taken back
        try:
            for one in request.container_requests:
                offer.check(self.resource, one.devices_ids)
        except RefusedRequestError as refusal:
            self._counted.refused_allocations += 1
            logger.warning("Allocate refused: %s", refusal)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        for one in request.container_requests:
            self._counted.allocations += 1
            logger.info("allocated %s", " ".join(one.devices_ids))
        return allocation(offer, len(request.container_requests))

    async def _pre_start_container(
        self, _request: api.PreStartContainerRequest, _context: object
    ) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()
