# SPDX-License-Identifier: Apache-2.0
"""The allocations of this node's containers, from its kubelet (PodResources v1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from tegra_device_plugin.config.units import lowest_id
from tegra_device_plugin.kubelet import kubelet_pb2 as api
from tegra_device_plugin.kubelet.sockets import check_descriptors

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
DEADLINE = 10.0  # seconds; the kubelet answers from memory
# Limit of the answer, which lists every pod of the node; the kubelet's own limit
# (pkg/kubelet/apis/podresources).
_MAX_BYTES = 16 * 1024 * 1024
# A kubelet before 1.21 does not know GetAllocatableResources; a kubelet before 1.23 reports that it is
# switched off.
_NOT_OFFERED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN)


class NoAnswerError(OSError):
    """The kubelet did not report the allocations of containers."""


@dataclass(frozen=True, order=True)
class ContainerAllocation:
    """A container and its devices of one resource: their count and the first."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str
    count: int = 1


def beside(plugin_directory: Path) -> Path:
    """Give the socket of the kubelet that has its plugins' sockets in this directory."""
    return plugin_directory.parent / SOCKET.parent.name / SOCKET.name


async def list_allocations(path: Path = SOCKET, deadline: float = DEADLINE) -> api.ListPodResourcesResponse:
    """Query the kubelet at the socket `path`. Raises NoAnswerError, also after `deadline` seconds."""
    request, response = api.ListPodResourcesRequest(), api.ListPodResourcesResponse
    try:
        answer: api.ListPodResourcesResponse = await _call(path, "List", request, response, deadline)
    except aio.AioRpcError as error:
        raise _no_answer(path, error) from error
    return answer


async def list_allocatable(path: Path = SOCKET, deadline: float = DEADLINE) -> Mapping[str, Set[str]] | None:
    """Give the node's healthy devices by resource, allocated or free; None: this kubelet does not report
    them.

    Raises NoAnswerError, also after `deadline` seconds.
    """
    request, response = api.AllocatableResourcesRequest(), api.AllocatableResourcesResponse
    try:
        answer = await _call(path, "GetAllocatableResources", request, response, deadline)
    except aio.AioRpcError as error:
        if error.code() in _NOT_OFFERED:
            return None
        raise _no_answer(path, error) from error
    return _ids_by_resource(answer.devices)


def found(answer: api.ListPodResourcesResponse) -> list[ContainerAllocation]:
    """Give the allocations in the kubelet's answer, in order."""
    return sorted(
        ContainerAllocation(pod.namespace, pod.name, container.name, resource, lowest_id(list(ids)), len(ids))
        for pod in answer.pod_resources
        for container in pod.containers
        for resource, ids in _ids_by_resource(container.devices).items()
    )


def container_counts(answer: api.ListPodResourcesResponse) -> Mapping[str, Counter[str]]:
    """Count by resource the containers of each device.

    A device can have two for a while: kubelets before 1.34 still list a pod that has ended.
    """
    by_resource: dict[str, Counter[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for resource, ids in _ids_by_resource(container.devices).items():
                by_resource.setdefault(resource, Counter()).update(ids)
    return by_resource


async def resources_beside(path: Path, resource: str, ids: Collection[str]) -> frozenset[str]:
    """Give all resources of the containers that have any of these devices. Raises NoAnswerError.

    There can be two such containers: devices of an init container or of an ended pod are used again.
    """
    wanted = set(ids)
    answer = await list_allocations(path)
    containers = [_ids_by_resource(one.devices) for pod in answer.pod_resources for one in pod.containers]
    return frozenset(
        name for one in containers if not wanted.isdisjoint(one.get(resource, ())) for name in one
    )


def _ids_by_resource(listed: Iterable[api.ContainerDevices]) -> dict[str, set[str]]:
    # Kubelets list a resource once for each NUMA node.
    by_resource: dict[str, set[str]] = {}
    for devices in listed:
        if devices.device_ids:
            by_resource.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return by_resource


def _check_there(path: Path) -> None:
    if not path.exists():
        raise NoAnswerError(
            f"{path} does not exist: the kubelet does not run, has its files elsewhere (--pod-resources), "
            "or its directory is not mounted here"
        )


async def _call(path: Path, method: str, request: Any, response: Any, deadline: float) -> Any:
    _check_there(path)
    check_descriptors()
    options = [("grpc.max_receive_message_length", _MAX_BYTES)]
    async with aio.insecure_channel(f"unix:{path}", options=options) as channel:
        call = channel.unary_unary(
            f"/v1.PodResourcesLister/{method}", type(request).SerializeToString, response.FromString
        )
        return await call(request, timeout=deadline)


def _no_answer(path: Path, error: aio.AioRpcError) -> NoAnswerError:
    return NoAnswerError(f"the kubelet at {path}: {error.code().name}: {error.details()}")
