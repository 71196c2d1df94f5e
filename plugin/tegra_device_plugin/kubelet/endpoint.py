# SPDX-License-Identifier: Apache-2.0
"""The DevicePlugin service: one endpoint, which is one gRPC server on one socket, per registration."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from tegra_device_plugin.kubelet import kubelet_pb2 as api
from tegra_device_plugin.kubelet.sockets import Handlers, SocketServer, unary
from tegra_device_plugin.sharing.allocation import (
    Allocation,
    Registration,
    RejectedRequestError,
    Resource,
)
from tegra_device_plugin.system.directorywatch import Identity
from tegra_device_plugin.system.durations import Durations
from tegra_device_plugin.system.log import brief

GPU = "gpu"


class AdvertisedResources:
    """The current resources by name; empty at first. `sources` advertise them, each its own.

    A follower takes the event `changed`, then reads `resources`, and waits for the event.
    """

    def __init__(self, *more_sources: str) -> None:
        self.resources: Mapping[str, Resource] = {}
        self.changed = asyncio.Event()
        self._by_source: dict[str, tuple[Resource, ...]] = dict.fromkeys((GPU, *more_sources), ())

    @property
    def complete(self) -> bool:
        """True if each source has resources, and each resource can be allocated."""
        found = self._by_source.values()
        return all(found) and all(one.health.healthy for resources in found for one in resources)

    def advertise(self, resources: Iterable[Resource], source: str = GPU) -> None:
        self._by_source[source] = tuple(resources)
        new = {one.name: one for resources in self._by_source.values() for one in resources}
        if new != self.resources:
            self.resources = new
            self.wake()

    def wake(self) -> None:
        # A fresh event each time: so no follower clears it for the others.
        self.changed.set()
        self.changed = asyncio.Event()


class Counters:
    def __init__(self) -> None:
        self.allocations = self.rejected_allocations = 0
        self.allocate_durations = Durations()
        self.registrations = self.failed_registrations = 0
        self.registration_durations = Durations()
        self.config_reloads = self.rejected_config_reloads = 0


logger = logging.getLogger(__name__)


def device_list(ids: Collection[str], unhealthy: Collection[str]) -> bytes:
    """Give the ListAndWatchResponse of these devices, serialised."""
    # Messages one after the other are one message with all their devices (protobuf.dev, Last One Wins). One
    # object that is written again and again takes a third of the time of 100,000, and less memory.
    one = api.ListAndWatchResponse(devices=[api.Device(health="Unhealthy" if unhealthy else "Healthy")])
    device, message = one.devices[0], bytearray()
    differ = 0 < len(unhealthy) < len(ids)
    for id_ in ids:
        device.ID = id_
        if differ:
            device.health = "Unhealthy" if id_ in unhealthy else "Healthy"
        message += one.SerializeToString()
    return bytes(message)


@functools.lru_cache(maxsize=4)  # making the message takes half the time of an Allocate
def allocate_response(allocations: tuple[Allocation, ...]) -> bytes:
    """Give the AllocateResponse for containers with these allocations, serialised."""
    return api.AllocateResponse(container_responses=map(_container, allocations)).SerializeToString()


def _container(allocation: Allocation) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(allocation.envs),
        mounts=[
            api.Mount(container_path=m.container, host_path=m.host, read_only=True) for m in allocation.mounts
        ],
        devices=[
            *(
                api.DeviceSpec(container_path=n, host_path=n, permissions="rw")
                for n in allocation.device_nodes
            ),
            *(
                api.DeviceSpec(container_path=n.container, host_path=n.host, permissions=n.permissions)
                for n in allocation.other_nodes
            ),
        ],
        cdi_devices=[api.CDIDevice(name=name) for name in allocation.cdi_devices],
    )


class Endpoint:
    """One socket on which a kubelet finds the plugin, for one resource.

    `on_change` is called when a stream opens or ends. `streams` counts the open ListAndWatch streams;
    `dialled` is True after the first stream.
    """

    def __init__(
        self,
        path: Path,
        registration: Registration,
        advertised: AdvertisedResources,
        counted: Counters,
        on_change: Callable[[], None],
    ) -> None:
        self.resource = registration.resource
        self.name = path.name
        self.path = path
        self.streams = 0
        self.dialled = False
        self._advertised = advertised
        self._counted = counted
        self._on_change = on_change
        self._stopping = False
        self._registration = registration
        handlers = self._handlers()
        # Options follow from the implemented methods: a kubelet calls neither of them otherwise.
        self.options = api.DevicePluginOptions(
            pre_start_required="PreStartContainer" in handlers,
            get_preferred_allocation_available="GetPreferredAllocation" in handlers,
        )
        self._server = SocketServer(self.path, {"v1beta1.DevicePlugin": handlers})

    @property
    def identity(self) -> Identity | None:
        return self._server.identity

    async def start(self) -> None:
        """Serve the socket; raises OSError if it cannot be made."""
        await self._server.start()

    async def stop(self) -> None:
        """End the streams, let running calls finish, remove the socket: in two seconds at most."""
        self._stopping = True
        self._advertised.wake()
        await self._server.stop()

    def _handlers(self) -> Handlers:
        handlers: Handlers = {
            "GetDevicePluginOptions": unary(self._options, api.Empty, api.DevicePluginOptions),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, api.Empty.FromString),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate, api.AllocateRequest.FromString),
        }
        if self._registration.pre_start:
            handlers["PreStartContainer"] = unary(
                self._pre_start_container, api.PreStartContainerRequest, api.PreStartContainerResponse
            )
        if self._registration.preferred:
            handlers["GetPreferredAllocation"] = unary(
                self._preferred, api.PreferredAllocationRequest, api.PreferredAllocationResponse
            )
        return handlers

    async def _preferred(
        self, request: api.PreferredAllocationRequest, _context: object
    ) -> api.PreferredAllocationResponse:
        """Give ids for each container. An error would fail the pod, so a resource that is gone has no ids."""
        resource = self._current()
        responses = [
            resource.preferred(one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size)
            if resource
            else []
            for one in request.container_requests
        ]
        return api.PreferredAllocationResponse(
            container_responses=[api.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in responses]
        )

    async def _options(self, _request: api.Empty, _context: object) -> api.DevicePluginOptions:
        return self.options

    async def _list_and_watch(self, _request: api.Empty, _context: object) -> AsyncIterator[bytes]:
        self.streams += 1
        self.dialled = True
        self._on_change()
        sent: tuple[Collection[str], Collection[str]] | None = None
        try:
            while not self._stopping:
                changed = self._advertised.changed
                resource = self._current()
                if resource is None:
                    return
                devices = (resource.ids, resource.unhealthy_ids)
                if devices != sent:
                    sent = devices
                    yield device_list(*sent)
                await changed.wait()
        finally:
            self.streams -= 1
            self._on_change()

    async def _allocate(self, request: api.AllocateRequest, context: aio.ServicerContext[Any, Any]) -> bytes:
        with self._counted.allocate_durations.measure():
            return await self._allocated(request, context)

    async def _allocated(self, request: api.AllocateRequest, context: aio.ServicerContext[Any, Any]) -> bytes:
        containers = [list(one.devices_ids) for one in request.container_requests]
        try:
            resource = self._advertised_resource()
            for ids in containers:
                resource.check(ids)
            for ids in containers:
                resource.prepare(ids)
            response = allocate_response(tuple(map(resource.allocation_for, containers)))
        except RejectedRequestError as rejection:
            self._counted.rejected_allocations += 1
            logger.warning("Allocate rejected: %s", rejection)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(rejection))
        for ids in containers:
            self._counted.allocations += 1
            logger.info("allocated %s of %s", brief(ids), self.resource)
        return response

    async def _pre_start_container(
        self, request: api.PreStartContainerRequest, context: aio.ServicerContext[Any, Any]
    ) -> api.PreStartContainerResponse:
        """Prepare each start of a container: the kubelet calls Allocate only once."""
        ids = list(request.devices_ids)
        try:
            resource = self._advertised_resource()
            resource.check_ids(ids)
            if needed := resource.requires(ids):
                await self._check_has_required(ids, needed)
            resource.prepare(ids)
        except RejectedRequestError as rejection:
            logger.warning("start of a container rejected: %s", rejection)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(rejection))
        return api.PreStartContainerResponse()

    async def _check_has_required(self, ids: list[str], needed: str) -> None:
        from tegra_device_plugin.kubelet import pod_resources  # noqa: PLC0415 - few resources need it

        path = pod_resources.beside(self.path.parent)
        try:
            allocated = await pod_resources.resources_beside(path, self.resource, ids)
        except OSError as error:
            raise RejectedRequestError(
                f"{self.resource}: cannot check whether the container has {needed}: {error}"
            ) from error
        if needed not in allocated:
            raise RejectedRequestError(
                f"{self.resource}: without {needed} it would mean all of the GPU, whose memory is divided "
                f"into units here: request {needed} as well"
            )

    def _advertised_resource(self) -> Resource:
        resource = self._current()
        if resource is None:
            raise RejectedRequestError(f"{self.resource}: no longer advertised in this way")
        return resource

    def _current(self) -> Resource | None:
        """Give the resource, if this endpoint was registered for it."""
        resource = self._advertised.resources.get(self.resource)
        return resource if resource and resource.registration == self._registration else None
