# SPDX-License-Identifier: Apache-2.0
"""Shares of the node's GPU and use of its memory: a row for each container, an account for each resource."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tegra_device_plugin.config.units import Units
from tegra_device_plugin.kubelet import pod_resources
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.sharing import ledger, memorylimit
from tegra_device_plugin.sharing.allocation import Ids
from tegra_device_plugin.system.quantity import MIB


@dataclass(frozen=True)
class Row:
    """A container with what it holds of each resource.

    `percent` of the GPU's time is its weight. Of GPU memory, in bytes: `limit` and `used` are its ledger's,
    `resident` is the use of its processes by nvmap or NVML. None: not asked for, or not known.
    """

    namespace: str
    pod: str
    container: str
    held: tuple[ContainerAllocation, ...]
    percent: int | None = None
    limit: int | None = None
    used: int | None = None
    resident: int | None = None

    @property
    def name(self) -> tuple[str, str, str]:
        """Namespace, pod and container."""
        return self.namespace, self.pod, self.container


@dataclass(frozen=True)
class Account:
    """The devices of one resource: `held` = `allocatable` - `free`, plus `lost` and `twice`, which are rare.

    `lost` are held and not allocatable any more: unhealthy, or not offered. `twice` are holders of a device
    that another one holds: an ended pod can be listed for a while after its devices were given to the next.
    """

    held: int
    allocatable: int
    free: int
    lost: int
    twice: int


async def of_node(
    socket: Path | None, units: Units | None, directory: Path
) -> tuple[list[Row], dict[str, Account]]:
    """Ask the kubelet for all rows, and for the accounts if it knows the allocatable devices.

    Raises pod_resources.NoAnswerError.
    """
    socket = socket or pod_resources.SOCKET
    answer = await pod_resources.ask(socket)
    found = rows(pod_resources.found(answer), units, directory)
    allocatable = await pod_resources.ask_allocatable(socket)
    return found, {} if allocatable is None else accounts(pod_resources.container_counts(answer), allocatable)


def rows(found: Iterable[ContainerAllocation], units: Units | None, directory: Path) -> list[Row]:
    """Give a row for each container, in order. `directory` has the files of the memory limit."""

    def container(one: ContainerAllocation) -> tuple[str, str, str]:
        return one.namespace, one.pod, one.container

    return [
        _row(name, tuple(held), units, directory)
        for name, held in groupby(sorted(found, key=container), container)
    ]


def _row(
    name: tuple[str, str, str], held: tuple[ContainerAllocation, ...], units: Units | None, directory: Path
) -> Row:
    if units is None:
        return Row(*name, held)
    by_resource = {one.resource: one for one in held}
    core = by_resource.get(units.core.name) if units.core else None
    memory = by_resource.get(units.memory.name)
    found = _ledger(directory, memory.device) if memory else None
    return Row(
        *name,
        held,
        percent=core.count if core else None,
        limit=found.limit if found else None,
        used=found.used if found else None,
    )


def _ledger(directory: Path, device: str) -> ledger.Ledger | None:
    try:
        return ledger.read(memorylimit.ledger_path(directory, device))
    except (OSError, ValueError):  # held, but never started
        return None


def with_resident(found: Iterable[Row], resident: Mapping[tuple[str, str, str], int]) -> list[Row]:
    """Give the rows with the memory of each container's processes, in bytes by the container's name.

    The memory of a container without a name may be that of any in its pod that has no figure.
    """

    def of(row: Row) -> int | None:
        unnamed = (row.namespace, row.pod, "") in resident
        return resident.get(row.name, None if unnamed else 0)

    return [replace(row, resident=of(row)) for row in found]


def accounts(held: Mapping[str, Counter[str]], allocatable: Mapping[str, Ids]) -> dict[str, Account]:
    """Give the account of each resource that is allocatable or held.

    `held` has for every device the number of containers that hold it; `allocatable` are the healthy devices.
    """
    return {
        resource: _account(held.get(resource, Counter()), allocatable.get(resource, frozenset()))
        for resource in sorted(held.keys() | allocatable.keys())
    }


def _account(held: Counter[str], allocatable: Ids) -> Account:
    healthy = sum(device in held for device in allocatable)
    return Account(
        held=held.total(),
        allocatable=len(allocatable),
        free=len(allocatable) - healthy,
        lost=len(held) - healthy,
        twice=held.total() - len(held),
    )


def as_dict(found: Iterable[Row], counted: Mapping[str, Account]) -> dict[str, Any]:
    """Give it all for JSON; memory in MiB."""
    return {
        "containers": [
            {
                "namespace": row.namespace,
                "pod": row.pod,
                "container": row.container,
                "held": [
                    {"resource": one.resource, "device": one.device, "count": one.count} for one in row.held
                ],
                "percent": row.percent,
                "memory_limit_mib": _mib(row.limit),
                "memory_used_mib": _mib(row.used),
                "memory_resident_mib": _mib(row.resident),
            }
            for row in found
        ],
        "resources": {name: asdict(account) for name, account in counted.items()},
    }


def as_lines(found: Sequence[Row], counted: Mapping[str, Account]) -> Iterator[str]:
    """Give it for people: a line for each container, and one for each resource."""
    for row in found:
        yield f"{row.namespace}/{row.pod} {row.container}: {', '.join(_words(row))}"
    if not found:
        yield "no container of this node holds a device"
    for name, account in counted.items():
        rare = "".join(
            f", {number} {what}"
            for number, what in (
                (account.lost, "held and not allocatable any more"),
                (account.twice, "held twice, as an ended pod is still listed"),
            )
            if number
        )
        yield f"{name}: {account.held} held, {account.free} free of {account.allocatable} allocatable{rare}"


def _words(row: Row) -> Iterator[str]:
    for one in row.held:
        yield f"{one.count} {one.resource}"
    if row.percent is not None:
        yield f"weight {row.percent} %"
    for what, size in (("limit", row.limit), ("used", row.used), ("resident", row.resident)):
        if size is not None:
            yield f"{what} {_mib(size)} MiB"


def _mib(size: int | None) -> int | None:
    """Give MiB, rounded up."""
    return None if size is None else -(-size // MIB)
