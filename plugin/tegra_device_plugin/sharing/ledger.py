# SPDX-License-Identifier: Apache-2.0
"""The ledger of a container's GPU memory: a file that the limit library of each of its processes writes.

Little endian, 2112 bytes. A header of 64: magic, limit in bytes (0: by the environment), overhead in bytes of
each process, zeros. Then 64 slots of 32: pid as the container sees it (0: free), start time (field 22 of
/proc/PID/stat, in clock ticks), bytes in use, zero. plugin/gpu_limit reads and writes the same.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"TGLEDGR1"
SLOTS = 64
PROCESS_IDS = 1 << 22
"""No process has this id or a larger one: PID_MAX_LIMIT of the kernel. A slot with such an id is free."""
MODE = 0o666  # the container's processes may be of any user

_HEADER = struct.Struct("<8sQQ40x")
_SLOT = struct.Struct("<QQQ8x")
SIZE = _HEADER.size + SLOTS * _SLOT.size


@dataclass(frozen=True)
class Slot:
    """One process and its bytes."""

    pid: int
    start_time: int
    used: int


@dataclass(frozen=True)
class Ledger:
    """What the file says; free slots are left out. `limit` and `overhead` are bytes."""

    limit: int
    overhead: int
    slots: tuple[Slot, ...] = ()

    @property
    def used(self) -> int:
        """What counts against the limit, in bytes.

        A killed process counts until a living one of its container asks for memory or how much is free.
        """
        return sum(slot.used + self.overhead for slot in self.slots)


def fresh(limit: int, overhead: int) -> bytes:
    """Give the content of a ledger that no process has written yet."""
    return _HEADER.pack(MAGIC, limit, overhead).ljust(SIZE, b"\0")


def parse(content: bytes) -> Ledger:
    """Read a ledger's content. Raises ValueError if it is not one."""
    if len(content) != SIZE or not content.startswith(MAGIC):
        raise ValueError(f"no ledger: {len(content)} bytes that begin with {content[: len(MAGIC)]!r}")
    _, limit, overhead = _HEADER.unpack_from(content)
    slots = (Slot(*fields) for fields in _SLOT.iter_unpack(content[_HEADER.size :]))
    return Ledger(limit, overhead, tuple(slot for slot in slots if 0 < slot.pid < PROCESS_IDS))


def read(path: Path) -> Ledger:
    """Read a ledger. Raises OSError, and ValueError if the file is none."""
    with path.open("rb") as file:
        return parse(file.read(SIZE + 1))  # the container may have written any number of bytes


def reset(path: Path, limit: int, overhead: int) -> None:
    """Create the ledger, or reset it in place: a container may have mounted it. Raises OSError."""
    content = fresh(limit, overhead)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        os.fchmod(handle, MODE)  # past the umask
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)
