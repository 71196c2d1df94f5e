# SPDX-License-Identifier: Apache-2.0
"""The node's ResourceSlice: what it should be, and the one next step from what is there. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tegra_device_plugin.config.dra import DRIVER

API_VERSION = "resource.k8s.io/v1"
KIND = "ResourceSlice"

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Create:
    """Make the slice."""

    generation: int
    reason: str


@dataclass(frozen=True)
class Update:
    """Replace the content of `old`."""

    old: Object
    generation: int
    reason: str


@dataclass(frozen=True)
class Delete:
    """Remove a slice that should not be there."""

    old: Object
    reason: str


Step = Create | Update | Delete


def step(
    found: Sequence[Object], devices: Sequence[Object] | None, node: str, last_generation: int
) -> Step | None:
    """Give the next step to a node that has one slice with these devices (None: no slice), None if it has.

    `found` are this driver's slices of the node. `last_generation` is the highest one ever seen: a pool's
    generation only grows.
    """
    generation = max((last_generation, *map(generation_of, found)))
    ours = [one for one in found if one.get("spec", {}).get("pool", {}).get("name") == node]
    if devices is None:
        return Delete(found[0], "there is no GPU to offer") if found else None
    keep = next((one for one in ours if _says(one, devices)), ours[0] if ours else None)
    for one in found:
        if one is not keep:
            return Delete(one, "it is not the node's only one")
    if keep is None:
        return Create(generation + 1, "there was none" if last_generation == 0 else "it was deleted")
    if not _says(keep, devices):
        reason = "; ".join(_differences(devices, keep["spec"])) or "its pool or the order of its devices"
        return Update(keep, generation + 1, reason)
    return None


def content(node: str, uid: str, devices: Sequence[Object], generation: int) -> dict[str, Any]:
    """Give the slice of a node, for its creation; `uid` is the Node's."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"generateName": f"{node}-{DRIVER}-", "ownerReferences": [owner]},
        "spec": spec(node, devices, generation),
    }


def replaced(old: Object, node: str, devices: Sequence[Object], generation: int) -> dict[str, Any]:
    """Give `old` with other devices; the server refuses it if `old` is not the last version."""
    return {**old, "spec": spec(node, devices, generation)}


def spec(node: str, devices: Sequence[Object], generation: int) -> dict[str, Any]:
    """Give a slice's spec: a node's pool has one slice."""
    return {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": list(devices),
    }


def generation_of(slice_: Object) -> int:
    """Give the pool's generation that a slice is of."""
    return int(slice_.get("spec", {}).get("pool", {}).get("generation", 0))


def dropped(devices: Sequence[Object], answer: Object) -> list[str]:
    """Give the fields of the devices that a server's answer has not: their feature gate is off there."""
    kept = answer.get("spec", {}).get("devices") or []
    by_name = {one.get("name"): one for one in kept}
    return list(
        dict.fromkeys(
            path for device in devices for path in _missing(device, by_name.get(device["name"], {}))
        )
    )


def _says(slice_: Object, devices: Sequence[Object]) -> bool:
    """Whether it has these devices, and is a pool of its own."""
    inside = slice_["spec"]
    return _as_sent(inside) == list(devices) and inside.get("pool", {}).get("resourceSliceCount") == 1


def _as_sent(inside: Object) -> list[dict[str, Any]]:
    """The devices of a slice without what the server adds: the time of a taint. No device is no field."""
    return [
        one
        if "taints" not in one
        else {
            **one,
            "taints": [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in one["taints"]],
        }
        for one in inside.get("devices") or []
    ]


def _missing(wanted: Object, kept: Object, path: str = "") -> Iterator[str]:
    for key, value in wanted.items():
        here = f"{path}.{key}" if path else key
        if key not in kept:
            yield here
        elif isinstance(value, dict):
            yield from _missing(value, kept[key], here)


def _differences(devices: Sequence[Object], found: Object) -> Iterator[str]:
    before = {str(one.get("name")): one for one in _as_sent(found)}
    after = {one["name"]: one for one in devices}
    for name in before.keys() - after.keys():
        yield f"{name} goes"
    for name, device in after.items():
        if name not in before:
            yield f"{name} comes"
            continue
        changed = [key for key in {**device, **before[name]} if device.get(key) != before[name].get(key)]
        if changed:
            yield f"{name} has another {', '.join(changed)}"
