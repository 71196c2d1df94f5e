# SPDX-License-Identifier: Apache-2.0
"""One GPU in units: percents of its time and pieces of its memory, one device id for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tegra_device_plugin.sharing.presets import Core, Count, Memory, Preset
from tegra_device_plugin.system.quantity import MIB, render

PERCENT = 100
CORE_IDS, MEMORY_IDS, COUNT_IDS = "c", "m", "g"
"""What ids begin with: short, because the kubelet is told all of them in one message."""

# Of that message: gRPC's default (grpc-go, defaultClientMaxReceiveMessageSize), which the kubelet keeps.
_MESSAGE_BYTES = 4 << 20
# Of each id in it, besides the id: the tags and lengths of Device, ID and health, and the longer health.
_DEVICE_BYTES = 6 + len("Unhealthy")


@dataclass(frozen=True)
class Numbered:
    """The ids PREFIX0 to PREFIX<count - 1> in order, without an object for each."""

    prefix: str
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}{number}" for number in range(self.count))

    def __contains__(self, id_: str, /) -> bool:
        number = id_.removeprefix(self.prefix)
        # The length first: Python refuses to read a number of thousands of digits.
        if not id_.startswith(self.prefix) or len(number) > len(str(self.count)) or not number.isdecimal():
            return False
        return str(int(number)) == number and int(number) < self.count


def most_ids(prefix: str) -> int:
    """How many `Numbered` ids fit into the kubelet's message."""
    count, digits, left = 0, 1, _MESSAGE_BYTES
    while True:
        size = len(prefix) + digits + _DEVICE_BYTES
        of_this_length = 10**digits - count
        if size * of_this_length > left:
            return count + left // size
        count, digits, left = 10**digits, digits + 1, left - size * of_this_length


def lowest(ids: Sequence[str]) -> str:
    """Give the id with the lowest number; the ids have one prefix."""
    length = min(map(len, ids))
    return min(id_ for id_ in ids if len(id_) == length)


@dataclass(frozen=True)
class Units:
    """What is sold of a GPU. `memory_total`, in bytes, has `memory_ids` units of the same size.

    `context_overhead` is what each process is charged for its CUDA context, in bytes.
    """

    preset: str
    memory: Memory
    memory_total: int
    memory_ids: int
    core: Core | None = None
    count: Count | None = None
    unserved: tuple[str, ...] = ()
    context_overhead: int = 0

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that are advertised, in order."""
        return Preset(self.memory, self.core, self.count).names

    @property
    def counts(self) -> dict[str, int]:
        """How many ids each resource has."""
        found = {self.core.name: PERCENT} if self.core else {}
        found[self.memory.name] = self.memory_ids
        if self.count:
            found[self.count.name] = self.count.ids
        return found

    @property
    def memory_unit(self) -> str:
        """The size of a unit, as a quantity; `1percent` of the total if it is that."""
        return render(self.memory_total // self.memory_ids) if self.memory.units else "1percent"

    def memory_bytes(self, ids: int) -> int:
        """Give the memory of so many units, in bytes."""
        return self.memory_total * ids // self.memory_ids

    def memory_env(self, ids: int) -> tuple[tuple[str, str], ...]:
        """Give what a container with so many units finds in its environment, as its system has it."""
        known = {"mib": self.memory_bytes(ids) // MIB, "units": ids, "total": self.memory_ids}
        return tuple((name, text.format_map(known)) for name, text in self.memory.env)


def promises(units: Units) -> list[str]:
    """Say in plain lines what the units mean, what is promised of them and what is not."""
    memory, core = units.memory.name, units.core
    unit = units.memory_unit if units.memory.units else f"1 percent of {render(units.memory_total)}"
    lines = [f"preset {units.preset}: one {memory} is {unit} of the GPU's memory"]
    if core:
        step = f", asked for in steps of {core.step}" if core.step > 1 else ""
        lines.append(f"one {core.name} is 1 percent of the GPU's time{step}")
    if units.count:
        lines.append(f"{units.count.name} is the GPU itself: 1 per container")
    lines.append(f"promised: no more than {render(units.memory_total)} of {memory} is given out")
    lines.append("promised: CUDA in a container is out of memory when it reaches the container's share")
    if units.context_overhead:
        lines.append(f"a process is charged {render(units.context_overhead)} for its CUDA context")
    lines.append(
        "not promised: limits on what is not CUDA's (video, graphics), or on a program that evades them"
    )
    lines.append("not promised: that the memory is free; it is the node's own, which other pods use as well")
    if core:
        lines.append(
            f"not promised: a share of time; {core.name} is counted, and is a weight with the node agent"
        )
    for one in (core, units.count):
        if one and one.alone == "refused":
            lines.append(f"refused: {one.name} without {memory}")
        elif one:
            whole = "all of " if one.alone == "whole" else ""
            lines.append(f"not limited: memory of a container that holds {whole}{one.name} and no {memory}")
    lines += [f"not advertised, because it is the same memory again: {name}" for name in units.unserved]
    return lines
