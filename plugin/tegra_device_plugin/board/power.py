# SPDX-License-Identifier: Apache-2.0
"""The board's power mode by its number, and how many multiprocessors have power in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.board import catalogue
from tegra_device_plugin.board.gpu import Gpu
from tegra_device_plugin.system.hosttree import HostTree

# Where nvpmodel writes the number down. The name is in /etc/nvpmodel.conf, a file that some boards lack, and
# that no pod can mount without failing or leaving one there.
_STATUS = "/var/lib/nvpmodel/status"
_MULTIPROCESSORS_PER_TPC = 2  # of Volta and Ampere
_NUMBER = re.compile(r"pmode:(\d{1,8})")


@dataclass(frozen=True)
class Power:
    """What is known of it; None is "not known"."""

    mode: int | None = None
    multiprocessors: int | None = None


def read(root: Path, gpu: Gpu) -> Power:
    """Look at the board's power mode. Takes less than a millisecond."""
    return Power(_mode(root), _multiprocessors(root, gpu))


def _mode(root: Path) -> int | None:
    """Give nvpmodel's number of the mode, None if that is not known."""
    number = _NUMBER.match(HostTree(root).text(_STATUS) or "")
    return int(number[1]) if number else None


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
