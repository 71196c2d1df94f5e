# SPDX-License-Identifier: Apache-2.0
"""The GPU by Dynamic Resource Allocation: which devices it is, and what of it a claim can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tegra_device_plugin.system.quantity import MIB, render

DRIVER = "gpu.jetson-k3s.github.io"
DEVICE = "igpu-0"

Mode = Literal["exclusive", "shares", "capacity"]
MODES: tuple[Mode, ...] = ("exclusive", "shares", "capacity")

# A ResourceSlice whose devices have taints has 64 of them at most (kubernetes, pkg/apis/resource/types.go).
MAX_SHARES = 64
DEFAULT_STEP = 64 * MIB


@dataclass(frozen=True)
class Dra:
    """How claims get the GPU. Sizes are bytes; `memory_total` None is all that the board has."""

    mode: Mode = "exclusive"
    shares: int = 1
    memory_total: int | None = None
    memory_step: int = DEFAULT_STEP
    context_overhead: int = 0
    """What each process is charged for its CUDA context."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices, in order."""
        if self.mode == "shares":
            return tuple(f"{DEVICE}-share-{number}" for number in range(self.shares))
        return (DEVICE,)

    @property
    def memory_sold(self) -> int | None:
        """The memory that is given out in pieces, None if it is not."""
        return self.memory_total if self.mode == "capacity" else None


def promises(dra: Dra) -> Iterator[str]:
    """Say in plain lines what the mode means, what is promised and what is not."""
    if dra.mode == "exclusive":
        yield "one claim at a time has the GPU"
        return
    if dra.mode == "shares":
        yield f"{dra.shares} claims at a time have the GPU, by time-slicing; memory is not divided"
        return
    assert dra.memory_total is not None  # noqa: S101 - the reader of the file asks for it
    yield (
        f"claims have pieces of {render(dra.memory_total)} of the GPU's memory, in steps of "
        f"{render(dra.memory_step)}; one that names no size has all of it"
    )
    yield "it needs the feature gate DRAConsumableCapacity, which is on from Kubernetes 1.36 on"
    yield "promised: CUDA in a container is out of memory when it reaches the claim's share"
    if dra.context_overhead:
        yield f"a process is charged {render(dra.context_overhead)} for its CUDA context"
    yield "not promised: limits on what is not CUDA's (video, graphics), or on a program that evades them"
    yield "not promised: a share of time; cores are counted, and nothing more"
