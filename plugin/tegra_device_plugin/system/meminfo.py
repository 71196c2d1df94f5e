# SPDX-License-Identifier: Apache-2.0
"""The memory of a board, which CPU and GPU share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tegra_device_plugin.system.hosttree import HostTree

_MEM_TOTAL = re.compile(r"^MemTotal:\s+([0-9]{1,15}) kB$", re.MULTILINE)


def memory_bytes(host: HostTree) -> int | None:
    """All of the board's memory in bytes: the GPU has none of its own."""
    total = _MEM_TOTAL.search(host.text("/proc/meminfo") or "")
    return int(total[1]) * 1024 if total else None
