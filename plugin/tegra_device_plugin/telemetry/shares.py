# SPDX-License-Identifier: Apache-2.0
"""Shares of the node's GPU and use of its memory: for the command `allocations` and as metrics."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tegra_device_plugin.config.units import Units
from tegra_device_plugin.kubelet import pod_resources
from tegra_device_plugin.kubelet.kubelet_pb2 import ListPodResourcesResponse
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.sharing.allocation import GPU_ID, Resource
from tegra_device_plugin.sharing.memory_limit import MemoryLimit, ledger_path
from tegra_device_plugin.system.kubernetes import MIB
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls
from tegra_device_plugin.telemetry.exposition import Metric, gauges


@dataclass(frozen=True)
class Row:
    """A container with its devices of each resource.

    `percent` of the GPU's time is its weight. Of GPU memory, in bytes: `limit` and `used` are its ledger's,
    `resident` is the use of its processes by nvmap or NVML. `unused` are the seconds for which it has had
    the GPU without use, if that is too long. None: not requested, or unknown.
    """

    namespace: str
    pod: str
    container: str
    allocations: tuple[ContainerAllocation, ...]
    percent: int | None = None
    limit: int | None = None
    used: int | None = None
    resident: int | None = None
    unused: int | None = None

    @property
    def name(self) -> tuple[str, str, str]:
        return self.namespace, self.pod, self.container


@dataclass(frozen=True)
class Account:
    """The devices of a resource: `allocated` = `allocatable` - `free` + `unavailable` + `duplicate`.

    `unavailable` devices are allocated and not allocatable any more: unhealthy, or not advertised.
    `duplicate` counts containers beyond the first of a device: a kubelet can list an ended pod beside the
    next pod with its devices. Both are rare.
    """

    allocated: int
    allocatable: int
    free: int
    unavailable: int
    duplicate: int

    def as_dict(self) -> dict[str, int]:
        return {
            "held": self.allocated,
            "allocatable": self.allocatable,
            "free": self.free,
            "lost": self.unavailable,
            "twice": self.duplicate,
        }


async def of_node(
    socket: Path | None, units: Units | None, directory: Path
) -> tuple[list[Row], dict[str, Account]]:
    """Query the kubelet for all rows, and for the accounts if it reports allocatable devices.

    Raises pod_resources.NoAnswerError.
    """
    socket = socket or pod_resources.SOCKET
    answer = await pod_resources.list_allocations(socket)
    found = rows(pod_resources.found(answer), units, directory)
    allocatable = await pod_resources.list_allocatable(socket)
    return found, {} if allocatable is None else accounts(pod_resources.container_counts(answer), allocatable)


def rows(found: Iterable[ContainerAllocation], units: Units | None, directory: Path) -> list[Row]:
    """Give a row for each container, in order. `directory` has the files of the memory limit."""

    def container(one: ContainerAllocation) -> tuple[str, str, str]:
        return one.namespace, one.pod, one.container

    return [
        _row(name, tuple(allocations), units, directory)
        for name, allocations in groupby(sorted(found, key=container), container)
    ]


def _row(
    name: tuple[str, str, str],
    allocations: tuple[ContainerAllocation, ...],
    units: Units | None,
    directory: Path,
) -> Row:
    if units is None:
        return Row(*name, allocations)
    by_resource = {one.resource: one for one in allocations}
    core = by_resource.get(units.core.name) if units.core else None
    memory = by_resource.get(units.memory.name)
    found = _ledger(directory, memory.device) if memory else None
    return Row(
        *name,
        allocations,
        percent=core.count if core else None,
        limit=found.limit if found else None,
        used=found.used if found else None,
    )


def _ledger(directory: Path, device: str) -> ledger.Ledger | None:
    try:
        return ledger.read(ledger_path(directory, device))
    except (OSError, ValueError):  # allocated, but never started
        return None


def with_resident(found: Iterable[Row], resident: Mapping[tuple[str, str, str], int]) -> list[Row]:
    """Give the rows with the memory of each container's processes, in bytes by the container's name.

    The memory of a container without a name may belong to any container of its pod without a value.
    """

    def of(row: Row) -> int | None:
        unnamed = (row.namespace, row.pod, "") in resident
        return resident.get(row.name, None if unnamed else 0)

    return [replace(row, resident=of(row)) for row in found]


def with_unused(found: Iterable[Row], seconds: Mapping[tuple[str, str, str], int]) -> list[Row]:
    """Give the rows with the seconds without use, by the container's name."""
    return [replace(row, unused=seconds.get(row.name)) for row in found]


def accounts(
    containers: Mapping[str, Counter[str]], allocatable: Mapping[str, Collection[str]]
) -> dict[str, Account]:
    """Give the account of each resource that is allocatable or allocated.

    `containers` counts the containers of each device; `allocatable` are the healthy devices.
    """
    return {
        resource: _account(containers.get(resource, Counter()), allocatable.get(resource, frozenset()))
        for resource in sorted(containers.keys() | allocatable.keys())
    }


def _account(containers: Counter[str], allocatable: Collection[str]) -> Account:
    healthy = sum(device in containers for device in allocatable)
    return Account(
        allocated=containers.total(),
        allocatable=len(allocatable),
        free=len(allocatable) - healthy,
        unavailable=len(containers) - healthy,
        duplicate=containers.total() - len(containers),
    )


def as_dict(found: Iterable[Row], counted: Mapping[str, Account]) -> dict[str, Any]:
    """Give rows and accounts for JSON; memory in MiB."""
    return {
        "containers": [
            {
                "namespace": row.namespace,
                "pod": row.pod,
                "container": row.container,
                "held": [
                    {"resource": one.resource, "device": one.device, "count": one.count}
                    for one in row.allocations
                ],
                "percent": row.percent,
                "memory_limit_mib": _mib(row.limit),
                "memory_used_mib": _mib(row.used),
                "memory_resident_mib": _mib(row.resident),
                "unused_seconds": row.unused,
                "unused_since": _since(row.unused),
            }
            for row in found
        ],
        "resources": {name: account.as_dict() for name, account in counted.items()},
    }


def as_lines(found: Sequence[Row], counted: Mapping[str, Account]) -> Iterator[str]:
    """Give a line for each container, and a line for each resource."""
    for row in found:
        yield f"{row.namespace}/{row.pod} {row.container}: {', '.join(_describe(row))}"
    if not found:
        yield "no container of this node has a device"
    for name, account in counted.items():
        exceptions = "".join(
            f", {number} {description}"
            for number, description in (
                (account.unavailable, "allocated and not allocatable any more"),
                (account.duplicate, "allocated twice, as an ended pod is still listed"),
            )
            if number
        )
        free = f"{account.free} free of {account.allocatable} allocatable"
        yield f"{name}: {account.allocated} allocated, {free}{exceptions}"


def _describe(row: Row) -> Iterator[str]:
    for one in row.allocations:
        yield f"{one.count} {one.resource}"
    if row.percent is not None:
        yield f"weight {row.percent} %"
    for name, size in (("limit", row.limit), ("used", row.used), ("resident", row.resident)):
        if size is not None:
            yield f"{name} {_mib(size)} MiB"
    if row.unused is not None:
        yield f"not used since {_since(row.unused)}"


def _since(seconds: int | None) -> str | None:
    """Give the time so many seconds ago, in RFC 3339."""
    if seconds is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))


def _mib(size: int | None) -> int | None:
    return None if size is None else -(-size // MIB)


# For the kubelet, and for the ledgers. A client waits 5 s for the page (httpd).
DEADLINE = 2.0
# HAMi's and Volcano's names of a container's limit and use, with labels of their own.
HAMI = ("vGPU_device_memory_limit_in_bytes", "vGPU_device_memory_usage_in_bytes")
# Any client can request the page, but the kubelet is queried no more often.
FRESH_SECONDS = 5.0


class Shares:
    """The metrics of the kubelet's last answer; a request of the page queries the kubelet."""

    def __init__(self, directory: Path) -> None:
        """`directory` has the kubelet's sockets of plugins."""
        self._socket = pod_resources.beside(directory)
        self._lock = asyncio.Lock()
        self._blocking = BlockingCalls(DEADLINE)
        self._queried_at: float | None = None
        self._metrics: tuple[Metric, ...] = ()
        self._problem_log = ProblemLog()

    async def metrics(
        self, resources: Mapping[str, Resource], limit: MemoryLimit, *, hami: bool = False
    ) -> tuple[Metric, ...]:
        """Give the metrics of these resources; none while the kubelet does not answer.

        `hami`: memory also under HAMi's names.
        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._queried_at is None or now - self._queried_at >= FRESH_SECONDS:
                self._queried_at = now
                try:
                    answer = await pod_resources.list_allocations(self._socket, DEADLINE)
                    self._metrics = await self._blocking.run(lambda: _metrics_of(answer, resources, limit))
                except (OSError, TimeoutError) as error:
                    reason = describe_error(error, "reading the ledgers hangs")
                    self._problem_log.warn(f"no metrics of shares: {reason}")
                    self._metrics = ()
                else:
                    self._problem_log.resolved("there are metrics of shares again")
            return self._metrics if hami else tuple(one for one in self._metrics if one.name not in HAMI)


def _metrics_of(
    answer: ListPodResourcesResponse, resources: Mapping[str, Resource], limit: MemoryLimit
) -> tuple[Metric, ...]:
    allocations = (one for one in pod_resources.found(answer) if one.resource in resources)
    found = rows(allocations, limit.units, limit.directory)
    containers = {
        name: by_id for name, by_id in pod_resources.container_counts(answer).items() if name in resources
    }
    allocatable = {name: _healthy_ids(one) for name, one in resources.items()}
    return tuple(_metrics(found, accounts(containers, allocatable)))


def _healthy_ids(resource: Resource) -> Collection[str]:
    unhealthy = resource.unhealthy_ids
    return tuple(id_ for id_ in resource.ids if id_ not in unhealthy) if unhealthy else resource.ids


def _metrics(found: Sequence[Row], accounts: Mapping[str, Account]) -> Iterator[Metric]:
    # By name: a kubelet can list an ended pod beside the one that has its name now.
    allocated: Counter[tuple[tuple[str, str, str], str]] = Counter()
    for row in found:
        for one in row.allocations:
            allocated[row.name, one.resource] += one.count
    yield gauges(
        "tegra_device_plugin_held_devices",
        (({**_labels(name), "resource": resource}, count) for (name, resource), count in allocated.items()),
    )
    yield gauges(
        "tegra_device_plugin_free_devices",
        (({"resource": name}, account.free) for name, account in accounts.items()),
    )
    yield gauges(
        "tegra_device_plugin_weight_percent",
        ((_labels(row.name), row.percent) for row in found if row.percent is not None),
    )
    limits = [(row.name, row.limit) for row in found if row.limit is not None]
    used = [(row.name, row.used) for row in found if row.used is not None]
    own = ("tegra_device_plugin_memory_limit_bytes", "tegra_device_plugin_memory_used_bytes")
    for names, make_labels in ((own, _labels), (HAMI, _vgpu)):
        for metric, sizes in zip(names, (limits, used), strict=True):
            yield gauges(metric, ((make_labels(name), size) for name, size in sizes))


def _labels(name: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("namespace", "pod", "container"), name, strict=True))


def _vgpu(name: tuple[str, str, str]) -> dict[str, str]:
    labels = dict(zip(("podnamespace", "podname", "ctrname"), name, strict=True))
    return labels | {"vdeviceid": "0", "deviceuuid": GPU_ID}
