# SPDX-License-Identifier: Apache-2.0
"""`sharing.dra` of the file: the devices of Dynamic Resource Allocation, and how claims share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from tegra_device_plugin.config.units import BoardMemory, parse_total, read_overhead
from tegra_device_plugin.system.kubernetes import MIB, parse_quantity, render_quantity

if TYPE_CHECKING:
    from tegra_device_plugin.config.document import Section

DEVICE = "igpu-0"

Mode = Literal["exclusive", "shares", "capacity"]
MODES: tuple[Mode, ...] = ("exclusive", "shares", "capacity")

# A ResourceSlice whose devices have taints has 64 of them at most (kubernetes, pkg/apis/resource/types.go).
MAX_SHARES = 64
DEFAULT_STEP = 64 * MIB


class Dra(NamedTuple):
    """How claims get the GPU. Sizes are bytes; `memory_total` None is all memory of the board."""

    mode: Mode = "exclusive"
    shares: int = 1
    memory_total: int | None = None
    memory_step: int = DEFAULT_STEP
    context_overhead: int = 0
    """Bytes that each CUDA context is charged."""

    @property
    def devices(self) -> tuple[str, ...]:
        if self.mode == "shares":
            return tuple(f"{DEVICE}-share-{number}" for number in range(self.shares))
        return (DEVICE,)

    @property
    def configured_memory(self) -> int | None:
        """The bytes of memory that claims divide, None where the mode does not divide memory."""
        return self.memory_total if self.mode == "capacity" else None


def describe(dra: Dra) -> Iterator[str]:
    """Give lines that describe the mode, its guarantees and its limits."""
    if dra.mode == "exclusive":
        yield "one claim at a time has the GPU"
        return
    if dra.mode == "shares":
        yield f"{dra.shares} claims at a time have the GPU, by time-slicing; memory is not divided"
        return
    assert dra.memory_total is not None  # noqa: S101 - read_dra requires it
    yield (
        f"claims have parts of {render_quantity(dra.memory_total)} of the GPU's memory, in steps of "
        f"{render_quantity(dra.memory_step)}; a claim without a size has all of it"
    )
    yield "this mode needs the feature gate DRAConsumableCapacity, which is on from Kubernetes 1.36 on"
    yield "promised: CUDA in a container gets an out-of-memory error at the claim's share"
    if dra.context_overhead:
        yield f"a process is charged {render_quantity(dra.context_overhead)} for its CUDA context"
    yield "not promised: limits on memory outside CUDA (video, graphics), or on a program that evades them"
    yield "not promised: a share of time; cores are only counted"


def read_dra(section: Section, board: BoardMemory) -> Dra | None:
    """Give the settings of the section; None if the section has errors, which its document collects."""
    mode = section.text("mode", _mode, required=True)
    if mode is None:
        return None
    shares = section.integer("shares", 2, MAX_SHARES, required=True) if mode == "shares" else 1
    step, overhead = DEFAULT_STEP, None
    if mode == "capacity":
        step = section.text("memoryStep", _step) or DEFAULT_STEP
        total = section.text("memoryTotal", _total(step, board), required=True)
        overhead = section.text("contextOverhead", read_overhead(total))
    else:
        total = section.text("memoryTotal", _total(None, board))
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
    size = parse_quantity(text)
    if size <= 0 or size % MIB:
        raise ValueError("a multiple of 1Mi above 0 is needed: CUDA's limits are in MiB")
    return size


def _total(step: int | None, board: BoardMemory) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = parse_total(text, board, step or MIB)
        if size <= 0:
            raise ValueError("more than 0 is needed: the part of the board's memory for the GPU")
        if step and (size % step or size < 2 * step):
            below = max(size - size % step, 2 * step)
            near = dict.fromkeys(render_quantity(total) for total in (below, below + step))
            raise ValueError(
                f"two or more of the memoryStep {render_quantity(step)} are needed: take {' or '.join(near)}"
            )
        return size

    return parse
