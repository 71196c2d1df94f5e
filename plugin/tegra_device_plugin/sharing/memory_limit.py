# SPDX-License-Identifier: Apache-2.0
"""The memory limit of containers: files on the host that containers mount, and a container's environment."""

from __future__ import annotations

import stat
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tegra_device_plugin.config.units import Units, lowest
from tegra_device_plugin.sharing import ledger
from tegra_device_plugin.sharing.allocation import Allocation, Mount
from tegra_device_plugin.sharing.ledger import name_of
from tegra_device_plugin.system.atomicfile import update_file
from tegra_device_plugin.system.kubernetes import MIB

LIBRARY = "libtegra-gpu-limit.so"
PRELOAD = "ld.so.preload"
LEDGERS = "ledgers"
_LEDGERS_MODE = 0o700  # the container runtime, which mounts them, is root

# Paths in a container.
CONTAINER_LIBRARY = f"/usr/lib/tegra-gpu-limit/{LIBRARY}"
CONTAINER_PRELOAD = "/etc/ld.so.preload"
CONTAINER_LEDGER = "/run/tegra-gpu-limit/ledger"

# elf.h: magic and class of e_ident, e_type and e_machine behind it.
_ELF = struct.Struct("<5s11xHH")
_MAGIC = b"\x7fELF"
_SHARED_OBJECT = 3
_MACHINES = {62: "x86-64", 183: "aarch64"}
_BITS = {1: "32-bit", 2: "64-bit"}


class UnusableLibraryError(OSError):
    """A library that no container of this board could load."""


def provide_files(directory: Path, library: Path) -> None:
    """Make the files in `directory` that every container mounts.

    Raises OSError, and UnusableLibraryError before anything is written.
    """
    content = library.read_bytes()
    _check_library(library, content[: _ELF.size])
    directory.mkdir(exist_ok=True)
    ledgers = directory / LEDGERS
    ledgers.mkdir(_LEDGERS_MODE, exist_ok=True)
    if stat.S_IMODE(ledgers.stat().st_mode) != _LEDGERS_MODE:
        _remove_writable(ledgers)
        ledgers.chmod(_LEDGERS_MODE)
    # By a rename: running containers keep the files that they have mounted.
    update_file(directory / LIBRARY, content)
    update_file(directory / PRELOAD, f"{CONTAINER_LIBRARY}\n")


def _remove_writable(ledgers: Path) -> None:
    """Remove the ledgers of earlier versions, which containers can write. Running containers keep theirs."""
    for path in list(ledgers.iterdir()):
        if not path.is_symlink() and path.name == name_of(path):
            path.unlink(missing_ok=True)


def check_files(directory: Path) -> None:
    """Raise OSError unless the files of `provide_files` can be mounted."""
    library = directory / LIBRARY
    with library.open("rb", buffering=0) as file:
        _check_library(library, file.read(_ELF.size))
    preload = directory / PRELOAD
    if preload.read_bytes() != f"{CONTAINER_LIBRARY}\n".encode():
        raise OSError(f"{preload} does not name {CONTAINER_LIBRARY}")


def _check_library(path: Path, header: bytes) -> None:
    if not header:
        raise UnusableLibraryError(f"{path} is empty")
    own = _own_header()
    if len(header) < len(own) or not header.startswith(_MAGIC):
        raise UnusableLibraryError(f"{path} is no shared library")
    (ident, kind, machine), (own_ident, _, own_machine) = _ELF.unpack(header), _ELF.unpack(own)
    if (ident, machine) != (own_ident, own_machine):
        needed = _architecture(own_ident, own_machine)
        raise UnusableLibraryError(f"{path} is for {_architecture(ident, machine)}, this board is {needed}")
    if kind != _SHARED_OBJECT:
        raise UnusableLibraryError(f"{path} is no shared library")


@cache
def _own_header() -> bytes:
    """Give the header of this Python: the board's containers have the same architecture."""
    with Path(sys.executable).open("rb") as file:
        return file.read(_ELF.size)


def _architecture(ident: bytes, machine: int) -> str:
    bits = _BITS.get(ident[len(_MAGIC)], "unknown")
    return f"{bits} {_MACHINES.get(machine, f'machine {machine}')}"


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
    """Bytes that each process is charged for its CUDA context."""

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
        ledger.provide(self.ledger, self.size // MIB * MIB, self.overhead)  # in MiB, like the environment


@dataclass(frozen=True)
class MemoryLimit:
    """The limit of containers that request units."""

    directory: Path
    units: Units

    def extend(self, allocation: Allocation, ids: Sequence[str]) -> Allocation:
        """Add the limit of a container with these devices. Raises OSError."""
        limit = self._limit(ids)
        return allocation._replace(
            envs=(*allocation.envs, *limit.envs, *self.units.memory_env(len(ids))),
            mounts=(*allocation.mounts, *limit.mounts),
        )

    def prepare(self, ids: Sequence[str]) -> None:
        """Make the ledger, and check the files that containers mount. Raises OSError."""
        self._limit(ids).prepare()

    def _limit(self, ids: Sequence[str]) -> Limit:
        # No two running containers share a device, so each has its own ledger.
        size = self.units.memory_bytes(len(ids))
        return Limit(self.directory, lowest(ids), size, self.units.context_overhead)
