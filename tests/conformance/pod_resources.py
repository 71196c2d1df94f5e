# SPDX-License-Identifier: Apache-2.0
"""The simulated kubelet's word on who holds what, and its own account of what is free."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from tegra_device_plugin.kubelet import podresources_pb2 as podresources

from tests.conformance.fake_kubelet import FakeKubelet

Name = tuple[str, str, str]
"""Namespace, pod and container."""


class PodResources:
    """PodResources v1. `holds` has the devices of each container by resource."""

    def __init__(self, kubelet: FakeKubelet, socket: Path) -> None:
        self.socket = socket
        self.holds: dict[Name, dict[str, Sequence[str]]] = {}
        self.numa_nodes = 1
        """A resource is listed once for each."""
        self.asked = 0
        self._kubelet = kubelet

    async def admits(self, name: Name, limits: Mapping[str, int]) -> None:
        """Give a container the first devices that are free, as the kubelet does, and start it."""
        self.holds[name] = {}
        for resource, count in limits.items():
            ids = self.free(resource)[:count]
            assert len(ids) == count, f"the scheduler would not have placed {name}"
            self.holds[name][resource] = ids
            await self._kubelet.allocate(ids, resource=resource)
        for resource, given in self.holds[name].items():
            await self._kubelet.start_container(resource, given)

    def free(self, resource: str) -> list[str]:
        """Healthy devices that it has not given out."""
        given = {id_ for held in self.holds.values() for id_ in held.get(resource, ())}
        devices = self._kubelet.devices[resource].items()
        return [id_ for id_, health in devices if health == "Healthy" and id_ not in given]

    async def list(self, _request: object, _context: object) -> podresources.ListPodResourcesResponse:
        """Tell who holds what."""
        self.asked += 1
        answer = podresources.ListPodResourcesResponse()
        pods: dict[tuple[str, str], podresources.PodResources] = {}
        for (namespace, pod, container), held in self.holds.items():
            if (namespace, pod) not in pods:
                pods[namespace, pod] = answer.pod_resources.add(namespace=namespace, name=pod)
            one = pods[namespace, pod].containers.add(name=container)
            for resource, ids in held.items():
                for _ in range(self.numa_nodes):
                    one.devices.add(resource_name=resource, device_ids=ids)
        return answer

    async def allocatable(
        self, _request: object, _context: object
    ) -> podresources.AllocatableResourcesResponse:
        """Tell which devices are healthy."""
        answer = podresources.AllocatableResourcesResponse()
        for resource, devices in self._kubelet.devices.items():
            healthy = [id_ for id_, health in devices.items() if health == "Healthy"]
            answer.devices.add(resource_name=resource, device_ids=healthy)
        return answer


@asynccontextmanager
async def pod_resources(kubelet: FakeKubelet) -> AsyncIterator[PodResources]:
    """Serve it where a kubelet does: beside its directory of plugins."""
    place = kubelet.directory.with_name("pod-resources")
    place.mkdir(exist_ok=True)
    found = PodResources(kubelet, place / "kubelet.sock")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "v1.PodResourcesLister",
                {
                    "List": grpc.unary_unary_rpc_method_handler(
                        found.list,
                        podresources.ListPodResourcesRequest.FromString,
                        podresources.ListPodResourcesResponse.SerializeToString,
                    ),
                    "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                        found.allocatable,
                        podresources.AllocatableResourcesRequest.FromString,
                        podresources.AllocatableResourcesResponse.SerializeToString,
                    ),
                },
            ),
        )
    )
    server.add_insecure_port(f"unix:{found.socket}")
    await server.start()
    try:
        yield found
    finally:
        await server.stop(None)
