# SPDX-License-Identifier: Apache-2.0
"""What is known about each board, read from boards.json (every entry says how sure its facts are)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("boards.json")

# First L4T release line whose user device nodes appear only when the GPU is first powered, and the
# first one that keeps its libraries in .../nvidia and its CSV list in devices.csv and drivers.csv.
_R35, _R36 = 35, 36

# CUDA driver (and runtime) version of each L4T release line.
_CUDA = {32: "10.2", 35: "11.4", 36: "12.6", 38: "13.0", 39: "13.2"}

# NVIDIA's container toolkit that each line's package archive brings: 32.7 and 35 have one release, of 36 and
# 38 it is the newest of those seen (OE4T/meta-tegra pins the same).
_TOOLKIT = {32: "1.7.0", 35: "1.11.0", 36: "1.16.2", 38: "1.18.0", 39: "1.19.1"}


class _Text:
    def __init__(self, key: str) -> None:
        self._key = key

    def __get__(self, fixture: Fixture, _type: object) -> str:
        return str(fixture.data[self._key])


@dataclass(frozen=True)
class Fixture:
    """One board under one L4T release. `data` is its entry in boards.json."""

    id: str
    data: Mapping[str, Any]

    def but(self, **changes: Any) -> Fixture:
        """A sibling that boards.json does not have: the same board with some facts changed."""
        unknown = changes.keys() - self.data.keys()
        if unknown:
            raise KeyError(f"{self.id} has no {sorted(unknown)}; boards.json has {sorted(self.data)}")
        return Fixture(self.id, {**self.data, **changes})

    module = _Text("module")
    """Module name as people say it, e.g. `Jetson AGX Orin devkit`."""
    reported_module = _Text("reported_module")
    """Module as the plugin tells it by the device tree, e.g. `Jetson AGX Orin 64GB`."""
    l4t = _Text("l4t")
    """L4T release, e.g. `36.4.3`."""
    jetpack = _Text("jetpack")
    """JetPack version, e.g. `6.2`."""
    soc = _Text("soc")
    """System on chip, e.g. `tegra234`."""
    driver = _Text("driver")
    """The GPU's kernel driver: `gk20a`, or `nvidia` of a PCI device."""
    compute_capability = _Text("cc")
    """CUDA compute capability, e.g. `8.7`."""
    gpu_device = _Text("gpu_device")
    """The GPU's device directory below /sys, e.g. `devices/platform/bus@0/17000000.gpu`."""

    @property
    def l4t_major(self) -> int:
        return int(self.l4t.partition(".")[0])

    @property
    def is_pci(self) -> bool:
        """Whether the GPU is a PCI device of the driver `nvidia` (Thor), not a platform device of `gk20a`."""
        return self.driver == "nvidia"

    @property
    def memory_bytes(self) -> int:
        """What deviceQuery calls global memory: on these boards all of MemTotal."""
        if "mem_total_kb" in self.data:
            return int(self.data["mem_total_kb"]) * 1024
        return int(self.data["devicequery_mb"]) * 1024 * 1024

    @property
    def nodes_always(self) -> tuple[str, ...]:
        """Device nodes below /dev that the kernel makes at boot."""
        return tuple(self.data["dev_nodes_always"])

    @property
    def nodes_after_poweron(self) -> tuple[str, ...]:
        """Device nodes below /dev that appear when the GPU is powered for the first time."""
        return tuple(self.data["dev_nodes_after_first_poweron"])

    @property
    def cards(self) -> Mapping[str, Mapping[str, Any]]:
        """Discrete GPUs by PCI address: the `minor` that the driver gave it, and its `nodes` below /dev."""
        cards: Mapping[str, Mapping[str, Any]] = self.data.get("cards", {})
        return cards

    @property
    def nodes_of_cards(self) -> frozenset[str]:
        """Device nodes below /dev that no container gets as the Tegra's."""
        return frozenset(node for card in self.cards.values() for node in card["nodes"])

    @property
    def library_dir(self) -> str:
        """Where L4T keeps its driver libraries, as an absolute path on the board."""
        return f"/usr/lib/aarch64-linux-gnu/{'nvidia' if self.l4t_major >= _R36 else 'tegra'}"

    @property
    def cuda(self) -> str:
        """CUDA driver version of the release, e.g. `12.6`."""
        return _CUDA[self.l4t_major]

    @property
    def toolkit(self) -> str:
        """NVIDIA's container toolkit that the release ships, e.g. `1.16.2`."""
        return _TOOLKIT[self.l4t_major]

    @property
    def cuda_nodes(self) -> tuple[str, ...]:
        """Device nodes below /dev without which a CUDA program cannot start."""
        if self.is_pci:
            return ("host1x-fence", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl", "nvmap")
        legacy = ("nvhost-as-gpu", "nvhost-ctrl-gpu", "nvhost-gpu", "nvmap")
        if self.l4t_major < _R35:
            return (*legacy, "nvhost-ctrl", "nvhost-dbg-gpu", "nvhost-prof-gpu")
        igpu = tuple(f"nvgpu/igpu0/{name}" for name in ("as", "channel", "ctrl", "tsg"))
        if self.l4t_major < _R36:
            return (*legacy, *igpu, "host1x", "nvhost-ctrl")
        display = next(name for name in ("nvidia0", "nvidia1") if name not in self.nodes_of_cards)
        return (*legacy, *igpu, "host1x-fence", display, "nvidiactl")


def load(data: Path = DATA) -> dict[str, Fixture]:
    stated: dict[str, dict[str, Any]] = {}
    for entry in json.loads(data.read_text(encoding="utf-8"))["boards"]:
        stated[entry["id"]] = stated.get(entry.get("like"), {}) | entry
    return {name: Fixture(name, _of_nvgpu(facts["gpu_device"]) | facts) for name, facts in stated.items()}


def _of_nvgpu(device: str) -> dict[str, str]:
    """Facts of a GPU with the driver nvgpu that follow from its device, such as `.../17000000.ga10b`."""
    name = device.rpartition("/")[2]
    return {"driver": "gk20a", "devfreq": name, "of_node_name": name.partition(".")[2]}
