# SPDX-License-Identifier: Apache-2.0
"""Node labels that describe the GPU: labels of NVIDIA's gpu-feature-discovery, and labels of a Jetson.

Three kinds of NVIDIA's labels are left out. With `nvidia.com/gpu.present`, NVIDIA's own device plugin would
run beside this plugin. No file has the driver's version. No file has the MIG state
(`nvidia.com/mig.capable`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from tegra_device_plugin.board import catalogue
from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.system.kubernetes import MIB, label_value

JETSON_PREFIX = "jetson-k3s.github.io"

Form = Literal["text", "json", "nfd"]


def node_labels(
    detection: Detection,
    *,
    replicas: int | None = 1,
    renamed: bool = False,
    memory_unit: str | None = None,
    power_mode: str | None = None,
    gpu_share: str | None = None,
    devices: str | None = None,
    jtop: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Give the labels in order; none without a Tegra GPU.

    `replicas`: how many containers share the GPU, 1 for exclusive use, None if as many as fit; `renamed`:
    whether the shared resource has a name of its own (then the product is not marked `-SHARED`, as in
    gpu-feature-discovery); `memory_unit`: the size of a unit of GPU memory, where there are units;
    `power_mode`: nvpmodel's name of the mode, if it is known; `gpu_share`: the effect of the
    pods' weights (agent/); `devices`: the names of resources beside the GPU's, joined by `_`; `jtop`: jtop's
    facts by the end of their labels' names, which all begin with `jtop.`: none replaces a label of the
    board's files.
    """
    board, gpu = detection.board, detection.gpu
    if gpu.state == "absent":
        return {}
    found = {f"nvidia.com/{key}": value for key, value in _gpu_labels(detection, replicas, renamed).items()}
    jetson_labels = {
        "soc": board.soc,
        "chip": gpu.chip,
        "module": board.module,
        "l4t": board.l4t,
        "jetpack": board.jetpack,
        "power-mode": power_mode,
        "unified-memory": "true",
        "gpu-memory.cgroup-charged": _of_release(catalogue.load().gpu_memory_cgroup_charged, board.l4t)
        or "unknown",
        "gpu-memory-unit": memory_unit,
        "gpu-share": gpu_share,
        "devices": devices,
        **(jtop or {}),
    }
    found |= {f"{JETSON_PREFIX}/{key}": value for key, value in jetson_labels.items()}
    valid = {key: label_value(value) for key, value in found.items() if value}
    return {key: valid[key] for key in sorted(valid) if valid[key]}


def render(found: Mapping[str, str], form: Form) -> str:
    """Labels as text: `key=value` lines, which are also the format of NFD's features.d, or a JSON object."""
    if form == "json":
        return json.dumps(found, indent=2) + "\n"
    return "".join(f"{key}={value}\n" for key, value in found.items())


def _gpu_labels(detection: Detection, replicas: int | None, renamed: bool) -> dict[str, str | None]:
    board, gpu = detection.board, detection.gpu
    shared = replicas != 1
    chip = catalogue.load().chips.get(gpu.chip or "")
    found: dict[str, str | None] = {
        "gpu.count": "1",
        "gpu.machine": board.model,
        "gpu.memory": str(gpu.memory_bytes // MIB) if gpu.memory_bytes else None,
        "gpu.replicas": str(replicas) if replicas else None,
        "gpu.sharing-strategy": "time-slicing" if shared else "none",
        "mps.capable": "false",
    }
    if chip:
        major, minor = chip.compute_capability.split(".")
        found["gpu.family"] = chip.family
        found["gpu.product"] = chip.product + ("-SHARED" if shared and not renamed else "")
        found["gpu.compute.major"], found["gpu.compute.minor"] = major, minor
    cuda = _of_release(catalogue.load().cuda, board.l4t)
    if cuda:
        major, minor = cuda.split(".")
        found["cuda.runtime.major"] = found["cuda.runtime-version.major"] = major
        found["cuda.runtime.minor"] = found["cuda.runtime-version.minor"] = minor
        found["cuda.runtime-version.full"] = cuda
    return found


def _of_release(table: Mapping[str, str], l4t: str | None) -> str | None:
    release = catalogue.nearest(table, l4t) if l4t else None
    return table[release] if release else None
