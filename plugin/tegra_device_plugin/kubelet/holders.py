# SPDX-License-Identifier: Apache-2.0
"""Which container holds which device, as this node's kubelet knows it (PodResources v1)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from tegra_device_plugin.kubelet import podresources_pb2 as api

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
DEADLINE = 10.0  # seconds; the kubelet answers from memory
# Of the answer, which lists every pod of the node; the kubelet's own limit (pkg/kubelet/apis/podresources).
_MOST_BYTES = 16 * 1024 * 1024


class NoAnswerError(OSError):
    """The kubelet did not say who holds what."""


@dataclass(frozen=True, order=True)
class Holder:
    """One device and the container that it was given to."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


def list_holders(path: Path = SOCKET) -> list[Holder]:
    """Ask the kubelet at the socket `path`; raises NoAnswerError."""
    return asyncio.run(ask(path))


async def ask(path: Path) -> list[Holder]:
    """Do so in a running event loop; raises NoAnswerError."""
    _check_there(path)
    return found(await _list(path))


def found(answer: api.ListPodResourcesResponse) -> list[Holder]:
    """Give the devices in the kubelet's answer with their holders, in order."""
    return sorted(
        Holder(pod.namespace, pod.name, container.name, devices.resource_name, device)
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
        for device in devices.device_ids
    )


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
