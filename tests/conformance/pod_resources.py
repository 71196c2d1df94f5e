# SPDX-License-Identifier: Apache-2.0
"""A SIMULATED kubelet's PodResources v1: the devices of each container, and those that are allocatable."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
from tegra_device_plugin.kubelet import kubelet_pb2 as podresources

from tests.conformance.fake_kubelet import FakeKubelet

Name = tuple[str, str, str]
"""Namespace, pod and container."""


class Kubelet:
    """It answers what a test sets. The allocatable devices are unknown unless a test sets them."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.answer = b""
        self.allocatable: bytes | grpc.StatusCode = grpc.StatusCode.UNIMPLEMENTED
        self.refuses = False
        self.queries = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(1))
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "List": grpc.unary_unary_rpc_method_handler(self._list),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._get_allocatable),
        }
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
        )
        self.server.add_insecure_port(f"unix:{socket}")
        self.server.start()

    def update(self) -> None:
        """Do what has to be done before each answer."""

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        self.queries += 1
        if self.refuses:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such feature")
        self.update()
        return self.answer

    def _get_allocatable(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        self.update()
        if isinstance(self.allocatable, grpc.StatusCode):
            context.abort(self.allocatable, "no such feature")
        return self.allocatable


@contextmanager
def running_kubelet() -> Iterator[Kubelet]:
    """A kubelet; pytest's own directories are too long for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp") as directory:
        one = Kubelet(Path(directory, "kubelet.sock"))
        yield one
        one.server.stop(None).wait()


class PodResources(Kubelet):
    """The answers of a kubelet with devices. `devices` are those of each container by resource."""

    def __init__(self, kubelet: FakeKubelet, socket: Path) -> None:
        self.devices: dict[Name, dict[str, Sequence[str]]] = {}
        self.numa_nodes = 1
        """A resource is listed once for each."""
        self._kubelet = kubelet
        super().__init__(socket)

    async def admits(self, name: Name, limits: Mapping[str, int]) -> None:
        """Give a container the first devices that are free, as the kubelet does, and start it."""
        self.devices[name] = {}
        for resource, count in limits.items():
            ids = self.free(resource)[:count]
            assert len(ids) == count, f"the scheduler would not have placed {name}"
            self.devices[name][resource] = ids
            await self._kubelet.allocate(ids, resource=resource)
        for resource, given in self.devices[name].items():
            await self._kubelet.start_container(resource, given)

    def free(self, resource: str) -> list[str]:
        """Healthy devices of no container."""
        given = {id_ for mine in self.devices.values() for id_ in mine.get(resource, ())}
        return [id_ for id_ in self._healthy(resource) if id_ not in given]

    def update(self) -> None:
        """Set the answers from `devices` and the healthy devices."""
        listed = podresources.ListPodResourcesResponse()
        allocatable = podresources.AllocatableResourcesResponse()
        pods: dict[tuple[str, str], podresources.PodResources] = {}
        for (namespace, pod, container), allocated in self.devices.items():
            if (namespace, pod) not in pods:
                pods[namespace, pod] = listed.pod_resources.add(namespace=namespace, name=pod)
            one = pods[namespace, pod].containers.add(name=container)
            for resource, ids in allocated.items():
                for _ in range(self.numa_nodes):
                    one.devices.add(resource_name=resource, device_ids=ids)
        for resource in self._kubelet.devices:
            allocatable.devices.add(resource_name=resource, device_ids=self._healthy(resource))
        self.answer, self.allocatable = listed.SerializeToString(), allocatable.SerializeToString()

    def _healthy(self, resource: str) -> list[str]:
        return [id_ for id_, health in self._kubelet.devices[resource].items() if health == "Healthy"]


@asynccontextmanager
async def pod_resources(kubelet: FakeKubelet) -> AsyncIterator[PodResources]:
    """Serve it where a kubelet does: beside its directory of plugins."""
    place = kubelet.directory.with_name("pod-resources")
    place.mkdir(exist_ok=True)
    found = PodResources(kubelet, place / "kubelet.sock")
    try:
        yield found
    finally:
        await asyncio.to_thread(found.server.stop(None).wait)
