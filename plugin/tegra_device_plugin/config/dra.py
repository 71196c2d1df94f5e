# SPDX-License-Identifier: Apache-2.0
"""`sharing.dra` of the file: how claims of Dynamic Resource Allocation get the GPU."""

from __future__ import annotations

from collections.abc import Callable

from tegra_device_plugin.config.document import Section
from tegra_device_plugin.config.units import read_overhead
from tegra_device_plugin.sharing.dra import DEFAULT_STEP, MAX_SHARES, MODES, Dra, Mode
from tegra_device_plugin.system import quantity
from tegra_device_plugin.system.quantity import MIB, render


def read_dra(section: Section) -> Dra | None:
    """Give what the section says, None if something is wrong, which the section's document is told."""
    mode = section.text("mode", _mode, required=True)
    if mode is None:
        return None
    shares = section.integer("shares", 2, MAX_SHARES, required=True) if mode == "shares" else 1
    step, overhead = DEFAULT_STEP, None
    if mode == "capacity":
        step = section.option("memoryStep", _step) or DEFAULT_STEP
        total = section.option("memoryTotal", _total(step), required=True)
        overhead = section.option("contextOverhead", read_overhead(total))
    else:
        total = section.option("memoryTotal", _total(None))
    section.finish()
    if shares is None or (mode == "capacity" and total is None):
        return None
    return Dra(mode, shares, total, step, overhead or 0)


def _mode(text: str) -> Mode:
    for mode in MODES:
        if text == mode:
            return mode
    raise ValueError(f"allowed: {', '.join(MODES)}")


def _step(text: str) -> int:
    size = quantity.parse(text)
    if size <= 0 or size % MIB:
        raise ValueError("a multiple of 1Mi above 0 is needed: CUDA's limits are in MiB")
    return size


def _total(step: int | None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = quantity.parse(text)
        if size <= 0:
            raise ValueError("more than 0 is needed: so much of the board's memory is the GPU's")
        if step and (size % step or size < 2 * step):
            below = max(size - size % step, 2 * step)
            near = dict.fromkeys(render(total) for total in (below, below + step))
            raise ValueError(
                f"two or more of the memoryStep {render(step)} are needed: take {' or '.join(near)}"
            )
        return size

    return parse
