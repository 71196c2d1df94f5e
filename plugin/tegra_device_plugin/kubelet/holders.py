# SPDX-License-Identifier: Apache-2.0
"""Which container holds how many of which devices, as this node's kubelet knows it (PodResources v1)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from tegra_device_plugin.kubelet import podresources_pb2 as api
from tegra_device_plugin.sharing.units import lowest

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
DEADLINE = 10.0  # seconds; the kubelet answers from memory
# Of the answer, which lists every pod of the node; the kubelet's own limit (pkg/kubelet/apis/podresources).
_MOST_BYTES = 16 * 1024 * 1024


class NoAnswerError(OSError):
    """The kubelet did not say who holds what."""


@dataclass(frozen=True, order=True)
class Holder:
    """A container and its devices of one resource: `count` of them, `device` being the first."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str
    count: int = 1


def beside(plugin_directory: Path) -> Path:
    """Give the socket of the kubelet that has its plugins' sockets in this directory."""
    return plugin_directory.parent / SOCKET.parent.name / SOCKET.name


def list_holders(path: Path = SOCKET) -> list[Holder]:
    """Ask the kubelet at the socket `path`; raises NoAnswerError."""
    return asyncio.run(ask(path))


async def ask(path: Path = SOCKET) -> list[Holder]:
    """Do so in a running event loop; raises NoAnswerError."""
    _check_there(path)
    return found(await _list(path))


def found(answer: api.ListPodResourcesResponse) -> list[Holder]:
    """Give the holders in the kubelet's answer, in order."""
    return sorted(
        Holder(pod.namespace, pod.name, container.name, resource, lowest(list(ids)), len(ids))
        for pod in answer.pod_resources
        for container in pod.containers
        for resource, ids in _by_resource(container).items()
    )


async def held_beside(path: Path, resource: str, ids: Collection[str]) -> frozenset[str]:
    """Give all resources of the containers that hold any of these devices; raises NoAnswerError.

    There can be two of them: an init container's devices are used again, and a pod's that has ended.
    """
    _check_there(path)
    asked = set(ids)
    answer = await _list(path)
    held = [_by_resource(container) for pod in answer.pod_resources for container in pod.containers]
    return frozenset(
        name for container in held if not asked.isdisjoint(container.get(resource, ())) for name in container
    )


def _by_resource(container: api.ContainerResources) -> dict[str, set[str]]:
    # Kubelets list a resource once for each NUMA node.
    by_resource: dict[str, set[str]] = {}
    for devices in container.devices:
        if devices.device_ids:
            by_resource.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return by_resource


def _check_there(path: Path) -> None:
    if not path.exists():
        raise NoAnswerError(
            f"there is no {path}: the kubelet does not run, has its files elsewhere (--pod-resources), "
            "or its directory is not mounted here"
        )


async def _list(path: Path) -> api.ListPodResourcesResponse:
    options = [("grpc.max_receive_message_length", _MOST_BYTES)]
    async with aio.insecure_channel(f"unix:{path}", options=options) as channel:
        ask = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            api.ListPodResourcesRequest.SerializeToString,
            api.ListPodResourcesResponse.FromString,
        )
        try:
            answer: api.ListPodResourcesResponse = await ask(api.ListPodResourcesRequest(), timeout=DEADLINE)
        except aio.AioRpcError as error:
            raise NoAnswerError(f"the kubelet at {path}: {error.code().name}: {error.details()}") from error
    return answer
