# SPDX-License-Identifier: Apache-2.0
"""The GPU as devices of a ResourceSlice (resource.k8s.io/v1). Pure functions.

Limits of the API (kubernetes, pkg/apis/resource/types.go, validation): an attribute's name is a C identifier
of 32 characters at most, a text has 64, a version is semver 2.0.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tegra_device_plugin.board import catalogue
from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.config.dra_modes import Dra
from tegra_device_plugin.dra.claims import UNHEALTHY
from tegra_device_plugin.system.kubernetes import label_value, render_quantity

_MAX_TEXT = 64
_NUMBERS = re.compile(r"\d+(?:\.\d+){0,2}")
_PRERELEASE = re.compile(r"[^0-9A-Za-z]+")
CORES = 100
_CORES_STEP = 5


@dataclass(frozen=True)
class Gpu:
    found: Detection
    health: Health


def published(gpu: Gpu, dra: Dra, *, taints: bool) -> list[dict[str, Any]]:
    """Give the devices. An unhealthy GPU's are tainted, or with `taints` False left out."""
    if not gpu.health.healthy and not taints:
        return []
    device: dict[str, Any] = {"attributes": attributes(gpu, dra)}
    if capacity := capacities(gpu, dra):
        device["capacity"] = capacity
    if dra.mode == "capacity":
        device["allowMultipleAllocations"] = True
    if not gpu.health.healthy:
        device["taints"] = [
            {"key": UNHEALTHY, "value": label_value(gpu.health.reason), "effect": "NoSchedule"}
        ]
    return [{"name": name} | device for name in dra.devices]


def attributes(gpu: Gpu, dra: Dra) -> dict[str, dict[str, Any]]:
    """Give the attributes that users select by. Unknown ones are left out."""
    board, found = gpu.found.board, gpu.found.gpu
    chip = catalogue.load().chips.get(found.chip or "")
    texts = {
        "type": "gpu",
        "sharing": dra.mode,
        "soc": board.soc,
        "chip": found.chip,
        "module": board.module,
        "productName": chip.product if chip else None,
        "architecture": chip.family if chip else None,
    }
    versions = {"cudaComputeCapability": found.compute_capability, "l4t": board.l4t, "jetpack": board.jetpack}
    result: dict[str, dict[str, Any]] = {
        name: {"string": value[:_MAX_TEXT]} for name, value in texts.items() if value
    }
    for name, text in versions.items():
        if text and (version := semver(text)):
            result[name] = {"version": version}
    power = gpu.found.power
    numbers = {"powerMode": power.mode, "multiprocessors": power.multiprocessors}
    return result | {name: {"int": number} for name, number in numbers.items() if number is not None}


def capacities(gpu: Gpu, dra: Dra) -> dict[str, dict[str, Any]]:
    """Give the memory, and the amounts of it that claims may request."""
    total = dra.memory_total or gpu.found.gpu.memory_bytes
    if total is None:
        return {}
    memory: dict[str, Any] = {"value": render_quantity(total)}
    if dra.mode != "capacity":
        return {"memory": memory}
    step = render_quantity(dra.memory_step)
    # A claim without a size gets all memory: it has the GPU alone, as in the mode exclusive.
    memory["requestPolicy"] = {
        "default": render_quantity(total),
        "validRange": {"min": step, "max": render_quantity(total), "step": step},
    }
    # The default of cores is 0. Otherwise a claim for memory would take all cores.
    cores = {
        "value": str(CORES),
        "requestPolicy": {
            "default": "0",
            "validRange": {"min": "0", "max": str(CORES), "step": str(_CORES_STEP)},
        },
    }
    return {"memory": memory, "cores": cores}


def semver(text: str) -> str | None:
    """Give `36.4.3`, `8.7` or `5.0 DP` as a semantic version, None for another text. Missing parts are 0."""
    found = _NUMBERS.match(text)
    if not found:
        return None
    numbers = [str(int(part)) for part in found[0].split(".")]
    version = ".".join((*numbers, "0", "0")[:3])
    more = _PRERELEASE.sub("-", text[found.end() :]).strip("-").lower()
    # A fourth number is no part of a semantic version.
    return f"{version}-{more}" if more and not more[0].isdigit() else version


def brief(devices: Sequence[Mapping[str, Any]]) -> str:
    """Give the names of the devices and their taint, for the log."""
    if not devices:
        return "no device"
    first, count = devices[0], len(devices)
    names = first["name"] if count == 1 else f"{first['name']} to {devices[-1]['name']}"
    taints = first.get("taints", ())
    return f"{names}, unhealthy: {taints[0]['value']}" if taints else str(names)
