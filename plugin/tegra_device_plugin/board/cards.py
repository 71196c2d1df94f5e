# SPDX-License-Identifier: Apache-2.0
"""Device nodes of discrete GPUs: a card in a slot of a board, which no container gets as the Tegra's GPU.

The driver's own answers decide, because it numbers its devices as it finds them: first those on the PCI bus,
then the display of the Tegra, which is no PCI device and has no entry in procfs (open-gpu-kernel-modules:
nv_drivers_init in nvidia/nv.c, nv_platform_device_display_probe in nvidia/nv-platform.c). So a Thor without a
card has nvidia0 and nvidia1, and one with a card has nvidia0 and nvidia2 (nvidia-container-toolkit#1561).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from tegra_device_plugin.system.hosttree import HostTree

# One directory for each PCI GPU, with the device's address as its name (nvidia/nv-procfs.c).
_ANSWERS = "/proc/driver/nvidia"
_MINOR = re.compile(r"^Device Minor:\s+([0-9]{1,3})$", re.MULTILINE)
_NODE = re.compile(r"nvidia[0-9]{1,3}")
_PCI_DEVICES = "/sys/bus/pci/devices"
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA_VENDOR = "0x10de"
_DISPLAYS = "0x03"  # the class of display controllers, with VGA and 3D
# Classes of sysfs whose devices have nodes below /dev, and these nodes' directory.
_CLASSES = {"/sys/class/drm": "/dev/dri", "/sys/class/graphics": "/dev"}


class Nodes(NamedTuple):
    """Device nodes (host paths) on a board with the driver `nvidia`."""

    own: tuple[str, ...]
    """Numbered nodes of the Tegra. Empty without an answer of the driver, and without a card."""
    others: frozenset[str]
    """Nodes of cards."""


def minor(host: HostTree, device: str | None) -> int | None:
    """Give the number of the node that the driver `nvidia` has made for the PCI device at a path of sysfs."""
    return (_answers(host) or {}).get(posixpath.basename(device or ""))


def find_nodes(host: HostTree, device: str | None) -> Nodes:
    """Tell the nodes of the integrated GPU, whose path in sysfs is `device`, from those of cards."""
    integrated = posixpath.basename(device or "")
    minors = _answers(host)
    if minors is None:
        minors = _expected(host, integrated)
    cards = frozenset(f"/dev/nvidia{number}" for address, number in minors.items() if address != integrated)
    numbered = (f"/dev/{name}" for name in host.names("/dev") if minors and _NODE.fullmatch(name))
    return Nodes(
        tuple(path for path in numbered if path not in cards), cards | {*_class_nodes(host, integrated)}
    )


def _answers(host: HostTree) -> dict[str, int] | None:
    """Minors by PCI address, as the driver gives them; None if they cannot be read."""
    if host.link(_ANSWERS) is None:
        return None
    places = {name: f"{_ANSWERS}/gpus/{name}/information" for name in host.names(f"{_ANSWERS}/gpus")}
    found = {name: _MINOR.search(host.text(place) or "") for name, place in places.items()}
    return {name: int(match[1]) for name, match in found.items() if match}


def _expected(host: HostTree, integrated: str) -> dict[str, int]:
    """Minors in the order in which the driver finds PCI devices; none without a card.

    A node nvidia2 is a third device beside the GPU and the display of a Thor: a card, also if its PCI device
    cannot be seen.
    """
    gpus = (name for name in host.names(_PCI_DEVICES) if _is_gpu(host, name))
    found = {name: number for number, name in enumerate(gpus)}
    if found.keys() - {integrated}:
        return found
    return {integrated: 0, "unseen": 1} if host.is_node("/dev/nvidia2") else {}


def _is_gpu(host: HostTree, address: str) -> bool:
    kind = host.text(f"{_PCI_DEVICES}/{address}/class") or _DISPLAYS
    return kind.startswith(_DISPLAYS) and host.text(f"{_PCI_DEVICES}/{address}/vendor") == _NVIDIA_VENDOR


def _class_nodes(host: HostTree, integrated: str) -> Iterator[str]:
    """Nodes of DRM and of frame buffers that belong to another PCI device."""
    for place, directory in _CLASSES.items():
        for name in host.names(place):
            device = posixpath.basename(host.link(f"{place}/{name}/device") or "")
            if _PCI_ADDRESS.fullmatch(device) and device != integrated:
                yield f"{directory}/{name}"
