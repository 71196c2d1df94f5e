# SPDX-License-Identifier: Apache-2.0
"""What the board's power mode makes of it: the mode's name, and how many multiprocessors have power."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.board import catalogue
from tegra_device_plugin.board.gpu import Gpu
from tegra_device_plugin.system.hosttree import HostTree

# nvpmodel writes the number of the mode down, and its configuration names the modes.
_STATUS = "/var/lib/nvpmodel/status"
_MODES = "/etc/nvpmodel.conf"
_MODES_BYTES = 1 << 16
_MULTIPROCESSORS_PER_TPC = 2  # of Volta and Ampere
_NUMBER = re.compile(r"pmode:(\d{1,8})")
_MODE = re.compile(r"<\s*POWER_MODEL\s+ID=(\d{1,8})\s+NAME=(\S+)\s*>")


@dataclass(frozen=True)
class Power:
    """What is known of it; None is "not known"."""

    mode: str | None = None
    multiprocessors: int | None = None


def read(root: Path, gpu: Gpu) -> Power:
    """Look at the board's power mode. Takes less than a millisecond."""
    return Power(_mode(root), _multiprocessors(root, gpu))


def _mode(root: Path) -> str | None:
    """Give the name of nvpmodel's mode, None if that is not known."""
    host = HostTree(root)
    number = _NUMBER.match(host.text(_STATUS) or "")
    if not number:
        return None
    try:
        modes = host.read(_MODES, _MODES_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return next((name for mode, name in _MODE.findall(modes) if int(mode) == int(number[1])), None)


def _multiprocessors(root: Path, gpu: Gpu) -> int | None:
    """Give how many multiprocessors have power, None if that is not known.

    tpc_pg_mask has a bit for each of the chip's TPCs that is off, those that a module never has among them
    (nvpmodel's configurations: 240 on an Orin NX, which has 4 of 8). Reading it does not wake the GPU.
    """
    chip = catalogue.load().chips.get(gpu.chip or "")
    if gpu.sysfs is None or chip is None or chip.tpcs is None:
        return None
    mask = HostTree(root).text(f"{gpu.sysfs}/tpc_pg_mask")
    if mask is None or not mask.isdecimal():
        return None
    off = (int(mask) & ((1 << chip.tpcs) - 1)).bit_count()
    return (chip.tpcs - off) * _MULTIPROCESSORS_PER_TPC or None
