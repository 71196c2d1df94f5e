# SPDX-License-Identifier: Apache-2.0
"""The memory limit of containers: files on the host that containers mount, and a container's environment."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tegra_device_plugin.board.detection import Detection
from tegra_device_plugin.board.health import HEALTHY, Health, unless_it_fails
from tegra_device_plugin.config.units import Units, lowest_id
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.system.atomicfile import update_file
from tegra_device_plugin.system.kubernetes import MIB, render_quantity

LIBRARY = "libtegra-gpu-limit.so"
PRELOAD = "ld.so.preload"
LEDGERS = "ledgers"
_LEDGERS_MODE = 0o700  # the container runtime, which mounts them, is root

# Paths in a container.
CONTAINER_LIBRARY = f"/usr/lib/tegra-gpu-limit/{LIBRARY}"
CONTAINER_PRELOAD = "/etc/ld.so.preload"
CONTAINER_LEDGER = "/run/tegra-gpu-limit/ledger"

_MISSING = Health(False, "limit-missing", "no container's memory could be limited")


class Mount(NamedTuple):
    """A bind mount: `host` (path on the node) appears at `container`, read-only."""

    host: str
    container: str


def provide_files(directory: Path, library: Path) -> None:
    """Make the files of all containers in `directory`, and the ledgers' key. Raises OSError."""
    content = library.read_bytes()
    if not content:
        raise OSError(f"{library} is empty")
    directory.mkdir(exist_ok=True)
    ledgers = directory / LEDGERS
    ledgers.mkdir(_LEDGERS_MODE, exist_ok=True)
    if stat.S_IMODE(ledgers.stat().st_mode) != _LEDGERS_MODE:  # of an older version
        ledgers.chmod(_LEDGERS_MODE)
    ledger.key(directory)
    # By a rename: running containers keep the files that they have mounted.
    update_file(directory / LIBRARY, content)
    update_file(directory / PRELOAD, f"{CONTAINER_LIBRARY}\n")


def check_files(directory: Path) -> None:
    """Raise OSError unless the files of `provide_files` can be mounted."""
    library, preload = directory / LIBRARY, directory / PRELOAD
    if not library.stat().st_size:
        raise OSError(f"{library} is empty")
    if preload.read_bytes() != f"{CONTAINER_LIBRARY}\n".encode():
        raise OSError(f"{preload} does not name {CONTAINER_LIBRARY}")


class MemoryTotal(NamedTuple):
    """The configured `total`, in bytes: the board must have that much memory."""

    total: int

    def provide(self, found: Detection, *, renew: bool) -> Health:
        return self.check(found)

    def check(self, found: Detection) -> Health:
        there = found.gpu.memory_bytes
        if there is None or self.total <= there:
            return HEALTHY
        configured, has = render_quantity(self.total), render_quantity(there // MIB * MIB)
        return Health(
            False, "memory-total", f"memoryTotal is {configured}, but the board has {has}: configure less"
        )


class LimitFiles(NamedTuple):
    """The files of all containers in `directory`, made from `library`."""

    directory: Path
    library: Path

    def provide(self, found: Detection, *, renew: bool) -> Health:
        # At each observation, `renew` or not: the files are small.
        return unless_it_fails(lambda: provide_files(self.directory, self.library), _MISSING)

    def check(self, found: Detection) -> Health:
        return unless_it_fails(lambda: check_files(self.directory), _MISSING)


# NVIDIA's own name for it, in MiB (kai-scheduler/gpu-fractioning).
LIMIT_VARIABLE = "NVIDIA_GPU_MEMORY_LIMIT"
# The path of the ledger, for the library (plugin/gpu_limit).
LEDGER_VARIABLE = "TEGRA_GPU_LIMIT_LEDGER"


def ledger_path(directory: Path, name: str) -> Path:
    """Give the path of the ledger of this name."""
    return directory.joinpath(LEDGERS, name)


@dataclass(frozen=True)
class Limit:
    """A limit of `size` bytes; `directory` is the same path on the host, `name` the ledger's."""

    directory: Path
    name: str
    size: int
    overhead: int = 0
    """Bytes that each CUDA context is charged."""

    @property
    def ledger(self) -> Path:
        return ledger_path(self.directory, self.name)

    @property
    def envs(self) -> tuple[tuple[str, str], ...]:
        return ((LIMIT_VARIABLE, str(self.size // MIB)), (LEDGER_VARIABLE, CONTAINER_LEDGER))

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """The mounts of a container, after `prepare`. Raises OSError."""
        return (
            Mount(f"{self.directory}/{LIBRARY}", CONTAINER_LIBRARY),
            Mount(f"{self.directory}/{PRELOAD}", CONTAINER_PRELOAD),
            Mount(str(ledger.mounted(self.ledger)), CONTAINER_LEDGER),
        )

    def prepare(self) -> None:
        """Make the ledger, and check the files that containers mount. Raises OSError."""
        check_files(self.directory)
        size = self.size // MIB * MIB  # in MiB, like the environment
        ledger.provide(self.ledger, size, self.overhead, lambda: ledger.key(self.directory))


@dataclass(frozen=True)
class MemoryLimit:
    """The limit of containers that request units."""

    directory: Path
    units: Units

    def envs(self, ids: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return (*self._limit(ids).envs, *self.units.memory_env(len(ids)))

    def mounts(self, ids: Sequence[str]) -> tuple[Mount, ...]:
        """Give the mounts of a container with these devices, after `prepare`. Raises OSError."""
        return self._limit(ids).mounts

    def prepare(self, ids: Sequence[str]) -> None:
        """Make the ledger, and check the files that containers mount. Raises OSError."""
        self._limit(ids).prepare()

    def _limit(self, ids: Sequence[str]) -> Limit:
        # No two running containers share a device, so each has its own ledger.
        size = self.units.memory_bytes(len(ids))
        return Limit(self.directory, lowest_id(ids), size, self.units.context_overhead)
