# SPDX-License-Identifier: Apache-2.0
"""The services of dra.sock: DRAPlugin and DRAResourceHealth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from tegra_device_plugin.board import health as board_health
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.dra import dra_pb2 as dra
from tegra_device_plugin.dra import health_pb2 as health
from tegra_device_plugin.dra import specs
from tegra_device_plugin.dra.claims import ClaimReference, Prepared
from tegra_device_plugin.dra.preparing import Preparer
from tegra_device_plugin.kubelet.sockets import Services

# What GetInfo says, and the service's full name, which is another one (kubelet, pkg/apis/*/types.go). A
# kubelet takes the first of DRAPlugin that it knows.
_DRA_SERVICES = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
_HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
SUPPORTED = (*_DRA_SERVICES, *_HEALTH_SERVICES)

# The kubelet takes older health for unknown. The board is observed every 5 s, and that may take 3 s.
_HEALTH_SECONDS = 30


@dataclass(frozen=True)
class ObservedHealth:
    """The last health of the GPU, None before the first, and when it was observed (Unix seconds)."""

    health: Health | None = None
    at: int = 0


class HealthBoard:
    """The health of all devices, for the streams of kubelets."""

    def __init__(self, pool: str, devices: Sequence[str]) -> None:
        self.current = ObservedHealth()
        self.changed = asyncio.Event()
        self._pool = pool
        self._devices = devices

    def show(self, gpu_health: Health) -> None:
        """Make this the current health."""
        self.current = ObservedHealth(gpu_health, int(time.time()))
        self.changed.set()
        # A new event each time, so that no stream clears it for the others.
        self.changed = asyncio.Event()

    def message(self) -> health.NodeWatchResourcesResponse:
        """Give all devices."""
        gpu = self.current.health
        status, text = health.UNKNOWN, "not observed yet"
        if gpu and gpu.reason != board_health.UNKNOWN.reason:
            status = health.HEALTHY if gpu.healthy else health.UNHEALTHY
        if gpu:
            text = "" if gpu.healthy else f"{gpu.reason}: {gpu.detail}"
        return health.NodeWatchResourcesResponse(
            devices=[
                health.DeviceHealth(
                    device=health.DeviceIdentifier(pool_name=self._pool, device_name=name),
                    health=status,
                    last_updated_time=self.current.at,
                    health_check_timeout_seconds=_HEALTH_SECONDS,
                    message=text,
                )
                for name in self._devices
            ]
        )


def dra_services(preparer: Preparer, board: HealthBoard, pool: str) -> Services:
    """Give the services of dra.sock."""

    async def prepare(
        request: dra.NodePrepareResourcesRequest, _: object
    ) -> dra.NodePrepareResourcesResponse:
        found = await preparer.prepare(_references(request.claims))
        return dra.NodePrepareResourcesResponse(
            claims={uid: _prepared(one, pool) for uid, one in found.items()}
        )

    async def unprepare(
        request: dra.NodeUnprepareResourcesRequest, _: object
    ) -> dra.NodeUnprepareResourcesResponse:
        found = await preparer.unprepare(_references(request.claims))
        return dra.NodeUnprepareResourcesResponse(
            claims={uid: dra.NodeUnprepareResourceResponse(error=why) for uid, why in found.items()}
        )

    async def watch(_request: object, _: object) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            following = board.changed
            yield board.message()
            await following.wait()

    plugin: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
            prepare,
            dra.NodePrepareResourcesRequest.FromString,
            dra.NodePrepareResourcesResponse.SerializeToString,
        ),
        "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
            unprepare,
            dra.NodeUnprepareResourcesRequest.FromString,
            dra.NodeUnprepareResourcesResponse.SerializeToString,
        ),
    }
    streams: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
            watch,
            health.NodeWatchResourcesRequest.FromString,
            health.NodeWatchResourcesResponse.SerializeToString,
        )
    }
    return dict.fromkeys(_DRA_SERVICES.values(), plugin) | dict.fromkeys(_HEALTH_SERVICES, streams)


def _references(claims: Sequence[dra.Claim]) -> list[ClaimReference]:
    return [ClaimReference(one.namespace, one.name, one.uid) for one in claims]


def _prepared(found: Prepared | str, pool: str) -> dra.NodePrepareResourceResponse:
    if isinstance(found, str):
        return dra.NodePrepareResourceResponse(error=found)
    return dra.NodePrepareResourceResponse(
        devices=[
            dra.Device(
                request_names=[one.request],
                pool_name=pool,
                device_name=one.name,
                cdi_device_ids=specs.names(found.claim.uid, one),
                share_id=one.share,
            )
            for one in found.devices
        ]
    )
