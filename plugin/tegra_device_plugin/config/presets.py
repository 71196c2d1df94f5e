# SPDX-License-Identifier: Apache-2.0
"""What other systems call their shares of a GPU: names, units, rules and environment, as one table.

Read in the sources of each: Project-HAMi/HAMi, elastic-ai/elastic-gpu-agent, Tencent's documents of qGPU and
tkestack/gpu-manager, AliyunContainerService/gpushare-device-plugin, koordinator-sh/koordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tegra_device_plugin.system.kubernetes import GIB, MIB

WithoutMemory = Literal["allowed", "whole", "refused"]
"""May a container ask for this and for no memory: always, only for all of it, or never. Where it means "all
of the GPU's memory", as it does for HAMi, nobody can promise that: other containers may have a part."""


@dataclass(frozen=True)
class Core:
    """Percents of the GPU's time: 100 ids. A container asks for a multiple of `step`."""

    name: str
    step: int = 1
    without_memory: WithoutMemory = "allowed"


@dataclass(frozen=True)
class Memory:
    """The GPU's memory, one id per unit."""

    name: str
    units: tuple[int, ...] = ()
    """The sizes that a unit may have, in bytes, the default first; none: a hundredth of the total."""
    any_unit: bool = False
    """The file may name any other size."""
    env: tuple[tuple[str, str], ...] = ()
    """What containers find there in their environment. {mib}, {units} and {total} (in units) are known."""


@dataclass(frozen=True)
class Count:
    """How many GPUs: there is one, so each container gets one of `ids` shares of it."""

    name: str
    ids: int
    without_memory: WithoutMemory = "refused"


@dataclass(frozen=True)
class Preset:
    """One system's names. `unserved`: names of the same shares that are not advertised."""

    memory: Memory
    core: Core | None = None
    count: Count | None = None
    unserved: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The resources that are advertised, in order."""
        return tuple(one.name for one in (self.core, self.memory, self.count) if one)


NONE = "none"
PRESETS = {
    NONE: Preset(
        core=Core("jetson-k3s.github.io/gpu-core"),
        memory=Memory("jetson-k3s.github.io/gpu-memory", (256 * MIB,), any_unit=True),
    ),
    # 10: HAMi's deviceSplitCount. Its webhook and its scheduler own the names otherwise.
    "hami": Preset(
        core=Core("nvidia.com/gpucores", without_memory="refused"),
        memory=Memory("nvidia.com/gpumem", (MIB,), env=(("CUDA_DEVICE_MEMORY_LIMIT_0", "{mib}m"),)),
        count=Count("nvidia.com/gpu", 10),
        unserved=("nvidia.com/gpumem-percentage",),
    ),
    "elastic": Preset(
        core=Core("elasticgpu.io/gpu-core"),
        memory=Memory("elasticgpu.io/gpu-memory", (MIB,)),
    ),
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
        ),
    ),
    # gpu-memory is in bytes there, which no list of ids can hold.
    "koordinator": Preset(
        core=Core("koordinator.sh/gpu-core", without_memory="refused"),
        memory=Memory("koordinator.sh/gpu-memory-ratio"),
        count=Count("koordinator.sh/gpu.shared", 100),
        unserved=("koordinator.sh/gpu-memory", "koordinator.sh/gpu"),
    ),
}
