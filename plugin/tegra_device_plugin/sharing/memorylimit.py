# SPDX-License-Identifier: Apache-2.0
"""The memory limit of one container: what it is told, what it mounts, and its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tegra_device_plugin.sharing import ledger, limitfiles
from tegra_device_plugin.sharing.offer import Grant, Mount
from tegra_device_plugin.sharing.units import Units, lowest
from tegra_device_plugin.system.quantity import MIB

# NVIDIA's own name for it, in MiB (kai-scheduler/gpu-fractioning).
LIMIT_VARIABLE = "NVIDIA_GPU_MEMORY_LIMIT"
# Where the library finds the ledger (plugin/gpu_limit).
LEDGER_VARIABLE = "TEGRA_GPU_LIMIT_LEDGER"


def ledger_path(directory: Path, ids: Sequence[str]) -> Path:
    """Where the ledger of a container with these devices is: no two live containers share a device."""
    return directory / limitfiles.LEDGERS / lowest(ids)


@dataclass(frozen=True)
class MemoryLimit:
    """How containers are limited; `directory` is the same on the host and here."""

    directory: Path
    units: Units

    def extend(self, grant: Grant, ids: Sequence[str]) -> Grant:
        """Give the grant with what limits a container with these devices."""
        directory = self.directory
        return replace(
            grant,
            envs=(
                *grant.envs,
                (LIMIT_VARIABLE, str(self.units.memory_bytes(len(ids)) // MIB)),
                (LEDGER_VARIABLE, limitfiles.CONTAINER_LEDGER),
                *self.units.memory_env(len(ids)),
            ),
            mounts=(
                *grant.mounts,
                Mount(str(directory / limitfiles.LIBRARY), limitfiles.CONTAINER_LIBRARY),
                Mount(str(directory / limitfiles.PRELOAD), limitfiles.CONTAINER_PRELOAD),
                Mount(str(ledger_path(directory, ids)), limitfiles.CONTAINER_LEDGER, read_only=False),
            ),
        )

    def prepare(self, ids: Sequence[str]) -> None:
        """Make the ledger anew, and see that all that is mounted is there. Raises OSError."""
        limitfiles.check(self.directory)
        limit = self.units.memory_bytes(len(ids)) // MIB * MIB  # as the container is told
        ledger.reset(ledger_path(self.directory, ids), limit, self.units.context_overhead)
