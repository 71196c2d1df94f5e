# SPDX-License-Identifier: Apache-2.0
"""Judges claims of Dynamic Resource Allocation that are written for other drivers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tegra_device_plugin.sharing.manifests import amounts
from tegra_device_plugin.sharing.manifests.findings import Finding
from tegra_device_plugin.sharing.manifests.text import Field, Section
from tegra_device_plugin.system.kubernetes import DRIVER, parse_quantity, render_quantity

if TYPE_CHECKING:
    from tegra_device_plugin.config.file import File

SHARED_CLASS = f"shared.{DRIVER}"
_CLASSES = {"hami-core-gpu.project-hami.io": SHARED_CLASS, "gpu.nvidia.com": DRIVER}
"""Classes of other drivers, which are also the drivers' names, by our class of the same kind."""


def judge(spec: Section, config: File | None) -> Iterator[Finding]:
    """Give findings on the specification of a claim."""
    for request in spec.sections("devices", "requests"):
        exactly = request.section("exactly")
        device_class = exactly.find("deviceClassName")
        if device_class is None or device_class.text not in (DRIVER, SHARED_CLASS, *_CLASSES):
            continue
        if ours := _CLASSES.get(device_class.text):
            text = "the class of another driver: unless you made one for boards, the claim waits"
            yield Finding("refused", device_class, text, (f"deviceClassName: {ours}",))
        elif config is not None and config.dra is None:
            text = "the configuration is the device plugin's: claims need gpu_device_plugin_api: dra"
            yield Finding("refused", device_class, text)
        if (count := exactly.find("count")) and (found := amounts.one_gpu(count)):
            yield found
        yield from _capacity(exactly, config)
        yield from selectors(exactly)


def _capacity(exactly: Section, config: File | None) -> Iterator[Finding]:
    dra = config.dra if config else None
    capacity = exactly.find("capacity")
    if capacity and dra and dra.mode != "capacity":
        text = f"the configuration has sharing.dra.mode: {dra.mode}, and this needs mode capacity"
        yield Finding("refused", capacity, text)
        return
    requests = exactly.section("capacity", "requests")
    if memory := requests.find("memory"):
        size = amounts.size(memory.text)
        try:
            parse_quantity(memory.text)
        except ValueError:
            instead = (f"memory: {render_quantity(size)}",) if size else None
            yield Finding("refused", memory, amounts.reading(memory.text), instead)
        else:
            if dra and dra.memory_total is not None and size and size > dra.memory_total:
                text = f"the configuration offers {render_quantity(dra.memory_total)}, so the claim waits"
                yield Finding("refused", memory, text)
            else:
                step = f"{render_quantity(dra.memory_step)}" if dra else "memoryStep"
                yield Finding("runs", memory, f"bytes, rounded up to a multiple of {step}, are the limit")
    if cores := requests.find("cores"):
        yield Finding("translated", cores, "percents of the GPU's time are counted, and not enforced")


def selectors(section: Section) -> Iterator[Finding]:
    """Give findings on the CEL expressions of a claim or of a DeviceClass."""
    for selector in section.sections("selectors"):
        expression = selector.find("cel", "expression")
        for driver in _CLASSES if expression else ():
            if expression and driver in expression.text:
                text = f"selects devices of the driver {driver}: write attributes of {DRIVER} (docs/dra.md)"
                yield Finding("refused", expression, text, _our_devices(expression, driver))


def _our_devices(expression: Field, driver: str) -> tuple[str, ...] | None:
    """Give the line that selects our devices of the same kind, if all of the other driver are selected."""
    on_one_line = expression.start[0] == expression.end[0]
    every_device = re.fullmatch(rf"""device\.driver\s*==\s*["']{re.escape(driver)}["']""", expression.text)
    if not (on_one_line and every_device):
        return None
    left_out = "exclusive" if _CLASSES[driver] == SHARED_CLASS else "shares"
    ours = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].sharing != '{left_out}'"
    return (f"expression: {ours}",)
