# SPDX-License-Identifier: Apache-2.0
"""Ledgers as plugin/gpu_limit/ledger.h has them, without the library and the plugin, for tests of both."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20
SLOTS, SLOT_BITS = 64, 56
MUTEX = 1 << 62
_HEADER = struct.Struct("<8sQQ40x")
_FLOCK = struct.Struct("@hhqqi4x")


def write(path: Path, limit: int = 0, overhead: int = 0) -> None:
    path.write_bytes(_HEADER.pack(b"TGLEDGR2", limit, overhead))


@contextmanager
def used_by(path: Path, *processes: int) -> Iterator[None]:
    """Let so many processes use so many bytes each. The locks are of an open file, not of a process."""
    handle = os.open(path, os.O_RDONLY)
    try:
        for slot, used in enumerate(processes):
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _region(fcntl.F_RDLCK, slot, used + 1))
        yield
    finally:
        os.close(handle)


@contextmanager
def counting(path: Path) -> Iterator[None]:
    """Lock the mutex, so that no process can count. The lock is of an open file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, MUTEX, 1, 0))
        yield
    finally:
        # Not by the close alone: a forked child may have the file, too.
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, MUTEX, 1, 0))
        os.close(handle)


def found(path: Path) -> dict[int, int]:
    """Give the bytes of each process that has locked a ledger, by process id."""
    with path.open("rb") as file:
        answers = [
            fcntl.fcntl(file, fcntl.F_GETLK, _region(fcntl.F_WRLCK, slot, 1 << SLOT_BITS))
            for slot in range(SLOTS)
        ]
    locks = map(_FLOCK.unpack, answers)
    return {pid: length - 1 for kind, _, _, length, pid in locks if kind != fcntl.F_UNLCK}


def _region(kind: int, slot: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, slot << SLOT_BITS, length, 0)
