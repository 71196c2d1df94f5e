# SPDX-License-Identifier: Apache-2.0
"""`sharing.units` of the file: one GPU sold in percents of its time and in units of its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tegra_device_plugin.config.document import Section
from tegra_device_plugin.config.settings import resource_name
from tegra_device_plugin.sharing.presets import NONE, PRESETS, Memory, Preset
from tegra_device_plugin.sharing.units import MEMORY_IDS, PERCENT, Units, most_ids
from tegra_device_plugin.system import quantity
from tegra_device_plugin.system.quantity import MIB, render


def read_units(section: Section) -> Units | None:
    """Give what the section says, None if something is wrong, which the section's document is told."""
    # As a list, too: whoever wants two presets is told that there is one.
    name = section.option("preset", _preset, many=True) or NONE
    preset = PRESETS[name]
    core_name = section.text("coreResource", _named(name, preset.core.name if preset.core else None, "core"))
    memory_name = section.text("memoryResource", _named(name, preset.memory.name, "memory"))
    unit = section.option("memoryUnit", _unit(name, preset.memory))
    unit = unit or next(iter(preset.memory.units), None)
    total = section.option("memoryTotal", _total(preset.memory, unit), required=True)
    overhead = section.option("contextOverhead", read_overhead(total))
    section.finish()
    core = replace(preset.core, name=core_name) if preset.core and core_name else preset.core
    memory = replace(preset.memory, name=memory_name) if memory_name else preset.memory
    if len(set(Preset(memory, core).names)) < len(Preset(memory, core).names):
        section.problem(f"coreResource and memoryResource are both {memory.name}: two names are needed")
    if total is None:
        return None
    return Units(
        preset=name,
        memory=memory,
        memory_total=total,
        memory_ids=total // unit if unit else PERCENT,
        core=core,
        count=preset.count,
        unserved=preset.unserved,
        context_overhead=overhead or 0,
    )


def _preset(text: str) -> str:
    if text not in PRESETS:
        raise ValueError(f"one preset per node; allowed: {', '.join(PRESETS)}")
    return text


def _named(preset: str, fixed: str | None, what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        name = resource_name(text)
        if preset != NONE and name != fixed:
            why = f"preset {preset} fixes {fixed}" if fixed else f"preset {preset} has no {what} resource"
            raise ValueError(f"{why}: leave it out, or take preset {NONE}")
        return name

    return parse


def _unit(preset: str, memory: Memory) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = quantity.parse(text)
        if not memory.units:
            raise ValueError(f"preset {preset} sells percents of memoryTotal: leave it out")
        if not memory.any_unit and size not in memory.units:
            raise ValueError(f"preset {preset} fixes {' or '.join(map(render, memory.units))}")
        if size <= 0 or size % MIB:
            raise ValueError("a multiple of 1Mi above 0 is needed: CUDA's limits are in MiB")
        return size

    return parse


def _total(memory: Memory, unit: int | None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = quantity.parse(text)
        if size <= 0:
            raise ValueError("more than 0 is needed: so much of the board's memory is sold to GPU containers")
        if unit is None:
            if size < PERCENT * MIB:
                raise ValueError(f"{PERCENT}Mi at least: one percent of it is a container's smallest share")
        elif size % unit:
            below = size - size % unit
            near = " or ".join(render(total) for total in (below, below + unit) if total)
            raise ValueError(f"no multiple of the memoryUnit {render(unit)}: take {near}")
        elif (ids := size // unit) > (most := most_ids(MEMORY_IDS)):
            advice = "take a larger memoryUnit" if memory.any_unit else "sell less"
            raise ValueError(
                f"{ids} units of {render(unit)} do not fit into the message that a kubelet takes (4 MiB): "
                f"{most} do, which is {render(most * unit)}: {advice}"
            )
        return size

    return parse


def read_overhead(total: int | None) -> Callable[[str], int]:
    """Give the parser of a contextOverhead beside a memoryTotal."""

    def parse(text: str) -> int:
        size = quantity.parse(text)
        if size < 0 or (total is not None and size >= total):
            raise ValueError(
                "0 or more is needed, and less than memoryTotal: each process is charged so much"
            )
        return size

    return parse
