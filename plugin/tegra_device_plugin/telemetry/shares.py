# SPDX-License-Identifier: Apache-2.0
"""Metrics of a GPU in units: what each container has of it, and uses by its ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tegra_device_plugin.kubelet import pod_resources
from tegra_device_plugin.kubelet.podresources_pb2 import ListPodResourcesResponse
from tegra_device_plugin.sharing.allocation import GPU_ID, Limiter, Resource
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.sensor import Sensor
from tegra_device_plugin.telemetry import view
from tegra_device_plugin.telemetry.exposition import Metric, gauges
from tegra_device_plugin.telemetry.view import Account, Row

# For the kubelet, and for the ledgers. A client waits 5 s for the page (httpd).
DEADLINE = 2.0
# Anybody can request the page, but the kubelet is asked no more often than that.
FRESH_SECONDS = 5.0


class Shares:
    """The metrics of the kubelet's last answer; the kubelet is asked when the page is requested."""

    def __init__(self, directory: Path) -> None:
        """`directory` has the kubelet's sockets of plugins."""
        self._socket = pod_resources.beside(directory)
        self._lock = asyncio.Lock()
        self._sensor = Sensor(DEADLINE)
        self._asked_at: float | None = None
        self._metrics: tuple[Metric, ...] = ()
        self._problem_log = ProblemLog()

    async def metrics(self, resources: Mapping[str, Resource], limit: Limiter) -> tuple[Metric, ...]:
        """Give the metrics of these resources; none while the kubelet does not answer."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._asked_at is None or now - self._asked_at >= FRESH_SECONDS:
                self._asked_at = now
                try:
                    answer = await pod_resources.ask(self._socket, DEADLINE)
                    self._metrics = await self._sensor.read(lambda: _metrics_of(answer, resources, limit))
                except (OSError, TimeoutError) as error:
                    reason = describe_error(error, "reading the ledgers hangs")
                    self._problem_log.warn(f"no metrics of shares: {reason}")
                    self._metrics = ()
                else:
                    self._problem_log.resolved("there are metrics of shares again")
            return self._metrics


def _metrics_of(
    answer: ListPodResourcesResponse, resources: Mapping[str, Resource], limit: Limiter
) -> tuple[Metric, ...]:
    allocations = (one for one in pod_resources.found(answer) if one.resource in resources)
    found = view.rows(allocations, limit.units, limit.directory)
    held = {
        name: by_id for name, by_id in pod_resources.container_counts(answer).items() if name in resources
    }
    allocatable = {name: one.ids if one.health.healthy else frozenset() for name, one in resources.items()}
    return tuple(_metrics(found, view.accounts(held, allocatable)))


def _metrics(found: Iterable[Row], accounts: Mapping[str, Account]) -> Iterator[Metric]:
    # By name: a kubelet can list an ended pod beside the one that has its name now.
    held: Counter[tuple[tuple[str, str, str], str]] = Counter()
    for row in found:
        for one in row.held:
            held[row.name, one.resource] += one.count
    yield gauges(
        "tegra_device_plugin_held_devices",
        "Devices that the container holds.",
        (({**_labels(name), "resource": resource}, count) for (name, resource), count in held.items()),
    )
    yield gauges(
        "tegra_device_plugin_free_devices",
        "Healthy devices that no container holds.",
        (({"resource": name}, account.free) for name, account in accounts.items()),
    )
    yield gauges(
        "tegra_device_plugin_weight_percent",
        "The container's share of the GPU's time, as it asked for.",
        ((_labels(row.name), row.percent) for row in found if row.percent is not None),
    )
    # HAMi's names and labels.
    yield gauges(
        "vGPU_device_memory_limit_in_bytes",
        "GPU memory that the container may use.",
        ((_vgpu(row.name), row.limit) for row in found if row.limit is not None),
    )
    yield gauges(
        "vGPU_device_memory_usage_in_bytes",
        "GPU memory that the container's programs count against that, by its ledger.",
        ((_vgpu(row.name), row.used) for row in found if row.used is not None),
    )


def _labels(name: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("namespace", "pod", "container"), name, strict=True))


def _vgpu(name: tuple[str, str, str]) -> dict[str, str]:
    labels = dict(zip(("podnamespace", "podname", "ctrname"), name, strict=True))
    return labels | {"vdeviceid": "0", "deviceuuid": GPU_ID}
