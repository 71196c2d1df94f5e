# SPDX-License-Identifier: Apache-2.0
"""`sharing.units` of the file: one GPU in percents of its time and in units of its memory, with presets.

The presets have the names, units, rules and environment of other systems. Sources: Project-HAMi/HAMi,
elastic-ai/elastic-gpu-agent, Tencent's documents of qGPU and tkestack/gpu-manager,
AliyunContainerService/gpushare-device-plugin, koordinator-sh/koordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from tegra_device_plugin.system.kubernetes import GIB, MIB, parse_quantity, render_quantity, resource_name

if TYPE_CHECKING:
    from tegra_device_plugin.config.document import Section

WithoutMemory = Literal["allowed", "whole", "refused"]
"""May a container request this resource without memory: always, only all of it, or never. For HAMi
such a request means all of the GPU's memory, which is impossible: other containers may have a part."""


class Core(NamedTuple):
    """Percents of the GPU's time: 100 ids. A container requests a multiple of `step`."""

    name: str
    step: int = 1
    without_memory: WithoutMemory = "allowed"


class Memory(NamedTuple):
    """The GPU's memory, one id per unit."""

    name: str
    units: tuple[int, ...] = ()
    """The sizes that a unit may have, in bytes, the default first; none: a hundredth of the total. Without
    preset, a unit may have any size."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment of containers. {mib}, {units} and {total} (in units) are replaced."""


class Count(NamedTuple):
    """The number of GPUs. A board has one GPU, so each container gets one of `ids` shares."""

    name: str
    ids: int
    without_memory: WithoutMemory = "refused"


@dataclass(frozen=True)
class Preset:
    """The names of one system. `unserved`: its other names of the same shares, which are not advertised."""

    memory: Memory
    core: Core | None = None
    count: Count | None = None
    unserved: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in (self.core, self.memory, self.count) if one)


NONE = "none"
PRESETS = {
    NONE: Preset(
        core=Core("jetson-k3s.github.io/gpu-core"),
        memory=Memory("jetson-k3s.github.io/gpu-memory", (256 * MIB,)),
    ),
    # 10: HAMi's deviceSplitCount. Its webhook and its scheduler own the names otherwise.
    "hami": Preset(
        core=Core("nvidia.com/gpucores", without_memory="refused"),
        memory=Memory("nvidia.com/gpumem", (MIB,), env=(("CUDA_DEVICE_MEMORY_LIMIT_0", "{mib}m"),)),
        count=Count("nvidia.com/gpu", 10),
        unserved=("nvidia.com/gpumem-percentage",),
    ),
    "elastic": Preset(core=Core("elasticgpu.io/gpu-core"), memory=Memory("elasticgpu.io/gpu-memory", (MIB,))),
    "qgpu": Preset(
        core=Core("tke.cloud.tencent.com/qgpu-core", step=5, without_memory="whole"),
        memory=Memory("tke.cloud.tencent.com/qgpu-memory", (GIB,)),
    ),
    "vcuda": Preset(
        core=Core("tencent.com/vcuda-core", without_memory="whole"),
        memory=Memory("tencent.com/vcuda-memory", (256 * MIB,)),
    ),
    # Its plugin's --memory-unit is GiB or MiB.
    "gpushare": Preset(
        memory=Memory(
            "aliyun.com/gpu-mem",
            (GIB, MIB),
            env=(
                ("ALIYUN_COM_GPU_MEM_IDX", "0"),
                ("ALIYUN_COM_GPU_MEM_POD", "{units}"),
                ("ALIYUN_COM_GPU_MEM_CONTAINER", "{units}"),
                ("ALIYUN_COM_GPU_MEM_DEV", "{total}"),
            ),
        )
    ),
    # MetaX's sGPU, by HAMi's names; 16: the most shares of one GPU. Without memory or percents it means all.
    "metax": Preset(
        core=Core("metax-tech.com/vcore", without_memory="refused"),
        memory=Memory("metax-tech.com/vmemory", (GIB,)),
        count=Count("metax-tech.com/sgpu", 16),
    ),
    # Its gpu-memory is in bytes: too many ids for a list.
    "koordinator": Preset(
        core=Core("koordinator.sh/gpu-core", without_memory="refused"),
        memory=Memory("koordinator.sh/gpu-memory-ratio"),
        count=Count("koordinator.sh/gpu.shared", 100),
        unserved=("koordinator.sh/gpu-memory", "koordinator.sh/gpu"),
    ),
}


PERCENT = 100
CORE_IDS, MEMORY_IDS, COUNT_IDS = "c", "m", "g"
"""Prefixes of ids: short, because a message to the kubelet has all ids."""

# Of that message gRPC takes 4 MiB (grpc-go, defaultClientMaxReceiveMessageSize). A device takes 22 bytes: an
# id of 7 characters, `Unhealthy`, and the tags and lengths of Device, ID and health.
MAX_IDS = (4 << 20) // 22


@dataclass(frozen=True)
class Units:
    """The units of a GPU. `memory_total`, in bytes, has `memory_ids` units of the same size.

    `context_overhead` is the charge of each CUDA context, in bytes.
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
        return Preset(self.memory, self.core, self.count).names

    @property
    def counts(self) -> dict[str, int]:
        found = {self.core.name: PERCENT} if self.core else {}
        found[self.memory.name] = self.memory_ids
        if self.count:
            found[self.count.name] = self.count.ids
        return found

    @property
    def memory_unit(self) -> str:
        """The size of a unit as a quantity, or `1percent` of the total."""
        return render_quantity(self.memory_total // self.memory_ids) if self.memory.units else "1percent"

    def memory_bytes(self, ids: int) -> int:
        return self.memory_total * ids // self.memory_ids

    def memory_env(self, ids: int) -> tuple[tuple[str, str], ...]:
        """Give the environment of a container with so many units, as its system has it."""
        known = {"mib": self.memory_bytes(ids) // MIB, "units": ids, "total": self.memory_ids}
        return tuple((name, text.format_map(known)) for name, text in self.memory.env)


def describe(units: Units) -> list[str]:
    """Give lines that describe the units, their guarantees and their limits."""
    memory, core = units.memory.name, units.core
    unit = units.memory_unit if units.memory.units else f"1 percent of {render_quantity(units.memory_total)}"
    lines = [f"preset {units.preset}: one {memory} is {unit} of the GPU's memory"]
    if core:
        step = f", requested in steps of {core.step}" if core.step > 1 else ""
        lines.append(f"one {core.name} is 1 percent of the GPU's time{step}")
    if units.count:
        lines.append(f"{units.count.name} is the GPU itself: 1 per container")
    lines.append(f"promised: no more than {render_quantity(units.memory_total)} of {memory} is allocated")
    lines.append("promised: CUDA in a container gets an out-of-memory error at the container's share")
    if units.context_overhead:
        lines.append(f"a process is charged {render_quantity(units.context_overhead)} for its CUDA context")
    lines.append(
        "not promised: limits on memory outside CUDA (video, graphics), or on a program that evades them"
    )
    lines.append("not promised: free memory; the GPU's memory is the node's, which other pods use as well")
    if core:
        lines.append(
            f"not promised: a share of time; {core.name} is only counted; with the node agent it is a weight"
        )
    for one in (core, units.count):
        if one and one.without_memory == "refused":
            lines.append(f"rejected: {one.name} without {memory}")
        elif one:
            whole = "all of " if one.without_memory == "whole" else ""
            lines.append(f"not limited: memory of a container with {whole}{one.name} and no {memory}")
    lines += [f"not advertised, because it is the same memory: {name}" for name in units.unserved]
    return lines


BoardMemory = Callable[[], int | None]
"""Gives the bytes of the board's memory, None where they are not known."""


def parse_total(text: str, board: BoardMemory, step: int) -> int:
    """Give the bytes of a memoryTotal, a quantity or a percentage of the board's memory. Raises ValueError.

    Of a percentage as many whole steps are taken as it has.
    """
    if not text.endswith("%"):
        return parse_quantity(text)
    number = text.removesuffix("%")
    # The length first: Python does not parse a number of thousands of digits.
    if len(number) > len(str(PERCENT)) or not (number.isascii() and number.isdecimal()):
        raise ValueError(f"a percentage is needed from 1% to {PERCENT}%, such as 75%, without a fraction")
    if not 1 <= int(number) <= PERCENT:
        raise ValueError(f"1% to {PERCENT}% of the board's memory can be offered")
    memory = board()
    if memory is None:
        raise ValueError("the board's memory is not known: its /proc/meminfo cannot be read. Give a quantity")
    size = memory * int(number) // PERCENT // step * step
    if not size:
        raise ValueError(
            f"that is less than {render_quantity(step)} of the board's {render_quantity(memory // MIB * MIB)}"
        )
    return size


def read_units(section: Section, board: BoardMemory) -> Units | None:
    """Give the units of the section; None if the section has errors, which its document collects."""
    name = section.text("preset", _preset) or NONE
    preset = PRESETS[name]
    core_name = section.text("coreResource", _own_name(name))
    memory_name = section.text("memoryResource", _own_name(name))
    unit = section.text("memoryUnit", _unit(name, preset.memory))
    unit = unit or next(iter(preset.memory.units), None)
    total = section.text("memoryTotal", _total(unit, board), required=True)
    overhead = section.text("contextOverhead", read_overhead(total))
    section.finish()
    core = preset.core._replace(name=core_name) if preset.core and core_name else preset.core
    memory = preset.memory._replace(name=memory_name) if memory_name else preset.memory
    if core and core.name == memory.name:
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


def _own_name(preset: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if preset != NONE:
            raise ValueError(f"preset {preset} fixes the names: leave it out, or use preset {NONE}")
        return resource_name(text)

    return parse


def _unit(preset: str, memory: Memory) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = parse_quantity(text)
        if preset != NONE and size not in memory.units:
            fixed = " or ".join(map(render_quantity, memory.units)) or "a percent of memoryTotal"
            raise ValueError(f"preset {preset} fixes {fixed}: leave it out")
        if size <= 0 or size % MIB:
            raise ValueError("a multiple of 1Mi above 0 is needed: CUDA's limits are in MiB")
        return size

    return parse


def _total(unit: int | None, board: BoardMemory) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = parse_total(text, board, unit or MIB)
        if size <= 0:
            raise ValueError("more than 0 is needed: the part of the board's memory for GPU containers")
        if unit is None:
            if size < PERCENT * MIB:
                raise ValueError(f"{PERCENT}Mi at least: one percent of it is a container's smallest share")
        elif size % unit:
            below = size - size % unit
            near = " or ".join(render_quantity(total) for total in (below, below + unit) if total)
            raise ValueError(f"no multiple of the memoryUnit {render_quantity(unit)}: take {near}")
        elif size // unit > MAX_IDS:
            raise ValueError(
                f"{size // unit} units of {render_quantity(unit)} do not fit into the message that a kubelet "
                f"takes: take {render_quantity(MAX_IDS * unit)} at most, or a larger memoryUnit"
            )
        return size

    return parse


def read_overhead(total: int | None) -> Callable[[str], int]:
    """Give the parser of a contextOverhead beside a memoryTotal."""

    def parse(text: str) -> int:
        size = parse_quantity(text)
        if size < 0 or (total is not None and size >= total):
            raise ValueError(
                "0 or more is needed, and less than memoryTotal: each CUDA context is charged this amount"
            )
        return size

    return parse


@dataclass(frozen=True)
class NumberedIds:
    """The ids PREFIX0 to PREFIX<count - 1> in order, without an object for each."""

    prefix: str
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}{number}" for number in range(self.count))

    def __contains__(self, id_: object, /) -> bool:
        if not isinstance(id_, str) or not id_.startswith(self.prefix):
            return False
        number = id_.removeprefix(self.prefix)
        # The length first: Python does not parse a number of thousands of digits.
        if len(number) > len(str(self.count)) or not number.isdecimal():
            return False
        return str(int(number)) == number and int(number) < self.count


def lowest_id(ids: Sequence[str]) -> str:
    """Give the id with the lowest number; the ids have one prefix."""
    length = min(map(len, ids))
    return min(id_ for id_ in ids if len(id_) == length)
