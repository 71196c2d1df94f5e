# SPDX-License-Identifier: Apache-2.0
"""The devices of this driver in a ResourceClaim (resource.k8s.io/v1, as a mapping). Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tegra_device_plugin.config.dra_modes import DEVICE, Mode
from tegra_device_plugin.system.kubernetes import DRIVER, parse_quantity

UNHEALTHY = f"{DRIVER}/unhealthy"
"""Key of the taint of a device whose GPU is not healthy."""


class ClaimError(Exception):
    """A claim cannot be prepared now. The text is shown in the events of its pod."""


@dataclass(frozen=True)
class ClaimReference:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Device:
    """A device that is allocated to a claim, or a share of a device."""

    request: str
    """The request of the claim."""
    name: str
    share: str | None = None
    """The id of the share; None: the claim has the device without shares."""
    memory: int | None = None
    """Bytes of a share."""
    admin: bool = False
    """Access for administration, beside the device's claim."""
    tolerates_unhealthy: bool = False

    @property
    def key(self) -> str:
        """A unique name among the claim's devices."""
        return f"{self.name}-{self.share}" if self.share else self.name

    @property
    def mode(self) -> Mode:
        """The driver's mode when the device was allocated."""
        if self.share is not None:
            return "capacity"
        return "exclusive" if self.name == DEVICE else "shares"


@dataclass(frozen=True)
class Prepared:
    claim: ClaimReference
    devices: tuple[Device, ...]

    def has_files_of(self, other: Prepared) -> bool:
        """True if the containers of both mount the same files.

        The rest of a device may differ: a checkpoint of an earlier release can lack a fact.
        """
        return _mounted(self.devices) == _mounted(other.devices)


def _mounted(devices: tuple[Device, ...]) -> set[tuple[str, int | None, bool]]:
    return {(one.key, one.memory, one.admin) for one in devices}


def devices(claim: Mapping[str, Any], reference: ClaimReference, pool: str) -> tuple[Device, ...]:
    """Give the devices of `pool` that are allocated to the claim, at least one. Raises ClaimError."""
    uid = claim.get("metadata", {}).get("uid")
    if uid != reference.uid:
        raise ClaimError(f"claim {reference} got replaced: its uid is {uid}, not {reference.uid}")
    allocation = claim.get("status", {}).get("allocation")
    if not allocation:
        raise ClaimError(f"claim {reference} is not allocated")
    allocated = allocation.get("devices", {})
    for entry in allocated.get("config", ()):
        if entry.get("opaque", {}).get("driver") == DRIVER:
            raise ClaimError(
                f"claim {reference} has parameters for {DRIVER}, which takes none: "
                "leave `config` out of the claim and of the DeviceClass"
            )
    found = tuple(_own_devices(allocated.get("results", ()), pool))
    if not found:
        raise ClaimError(f"claim {reference} has no device of {DRIVER} in the pool {pool} of this node")
    return found


def present(claim: Mapping[str, Any] | None, reference: ClaimReference, pool: str) -> tuple[Device, ...]:
    """Give the devices of `pool` that the claim has now; `claim` is what the API server has by that name.

    None if it was deleted, replaced or deallocated, or is allocated elsewhere. Raises ClaimError.
    """
    if claim is None or claim.get("metadata", {}).get("uid") != reference.uid:
        return ()
    allocation = claim.get("status", {}).get("allocation") or {}
    return tuple(_own_devices(allocation.get("devices", {}).get("results", ()), pool))


def conflict(wanted: tuple[Device, ...], allocated: tuple[Device, ...]) -> Device | None:
    """Give a device of `allocated` that excludes the devices `wanted` by another claim, or None.

    There is one GPU. While a claim has it in one mode, no claim gets it in another.
    """
    for one in allocated:
        for other in wanted:
            if one.admin or other.admin:
                continue
            if one.mode != other.mode or one.key == other.key:
                return one
    return None


def _own_devices(results: list[Mapping[str, Any]], pool: str) -> Iterator[Device]:
    for result in results:
        if result.get("driver") != DRIVER or result.get("pool") != pool:
            continue
        memory = result.get("consumedCapacity", {}).get("memory")
        yield Device(
            request=str(result.get("request", "")).partition("/")[0],  # the rest is a subrequest's name
            name=str(result.get("device", "")),
            share=result.get("shareID"),
            memory=None if memory is None else _bytes(str(memory)),
            admin=bool(result.get("adminAccess")),
            tolerates_unhealthy=any(map(_tolerates, result.get("tolerations", ()))),
        )


def _bytes(text: str) -> int:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise ClaimError(f"consumedCapacity memory {text!r}: {error}") from error


def _tolerates(toleration: Mapping[str, Any]) -> bool:
    return toleration.get("key") == UNHEALTHY or (
        not toleration.get("key") and toleration.get("operator") == "Exists"
    )
