# SPDX-License-Identifier: Apache-2.0
"""The memory limit of one container: its environment, its mounts and its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.config.units import Units
from tegra_device_plugin.sharing import ledger, limitfiles
from tegra_device_plugin.sharing.allocation import Allocation, Mount
from tegra_device_plugin.sharing.deviceids import lowest
from tegra_device_plugin.system.quantity import MIB

# NVIDIA's own name for it, in MiB (kai-scheduler/gpu-fractioning).
LIMIT_VARIABLE = "NVIDIA_GPU_MEMORY_LIMIT"
# Where the library finds the ledger (plugin/gpu_limit).
LEDGER_VARIABLE = "TEGRA_GPU_LIMIT_LEDGER"


def ledger_path(directory: Path, name: str) -> Path:
    """Where the ledger of this name is."""
    return directory.joinpath(limitfiles.LEDGERS, name)


@dataclass(frozen=True)
class Limit:
    """A limit of `size` bytes; `directory` is the same on the host and here, `name` the ledger's there."""

    directory: Path
    name: str
    size: int
    overhead: int = 0
    """Bytes that each process is charged for its CUDA context."""

    @property
    def ledger(self) -> Path:
        """Where the ledger is."""
        return ledger_path(self.directory, self.name)

    @property
    def envs(self) -> tuple[tuple[str, str], ...]:
        """The environment of a container."""
        return (
            (LIMIT_VARIABLE, str(self.size // MIB)),
            (LEDGER_VARIABLE, limitfiles.CONTAINER_LEDGER),
        )

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What a container mounts, after `prepare`. Raises OSError."""
        return (
            Mount(f"{self.directory}/{limitfiles.LIBRARY}", limitfiles.CONTAINER_LIBRARY),
            Mount(f"{self.directory}/{limitfiles.PRELOAD}", limitfiles.CONTAINER_PRELOAD),
            Mount(str(ledger.mounted(self.ledger)), limitfiles.CONTAINER_LEDGER),
        )

    def prepare(self) -> None:
        """Make the ledger, and check the files that containers mount. Raises OSError."""
        limitfiles.check(self.directory)
        ledger.provide(self.ledger, self.size // MIB * MIB, self.overhead)  # in MiB, like the environment


@dataclass(frozen=True)
class MemoryLimit:
    """How containers that ask for units are limited."""

    directory: Path
    units: Units

    def extend(self, allocation: Allocation, ids: Sequence[str]) -> Allocation:
        """Give the allocation with what limits a container with these devices. Raises OSError."""
        limit = self._limit(ids)
        return allocation._replace(
            envs=(*allocation.envs, *limit.envs, *self.units.memory_env(len(ids))),
            mounts=(*allocation.mounts, *limit.mounts),
        )

    def prepare(self, ids: Sequence[str]) -> None:
        """Make the ledger, and check the files that containers mount. Raises OSError."""
        self._limit(ids).prepare()

    def _limit(self, ids: Sequence[str]) -> Limit:
        # No two live containers share a device, so none share a ledger.
        size = self.units.memory_bytes(len(ids))
        return Limit(self.directory, lowest(ids), size, self.units.context_overhead)
