# SPDX-License-Identifier: Apache-2.0
"""The ledger of a container's GPU memory: a file that the limit library of each of its processes locks.

The container mounts it read-only. plugin/gpu_limit/ledger.h has the format: a header of 64 bytes, followed by
the locks, which are in the kernel's memory and end with their process.

A ledger is a link with the name of its devices or claim. The link leads to the mounted file, whose name
cannot be guessed. Only root can read the directory.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"TGLEDGR2"
SLOTS = 64
_SLOT_BITS = 56
_MODE = 0o644  # the container's processes may be of any user

_HEADER = struct.Struct("<8sQQ40x")
SIZE = _HEADER.size
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64 bits: type, whence, start, length, pid

# Limit of processor time. A container can set any number of locks, and the kernel searches all locks: 2 ms
# for 20,000.
_SECONDS = 0.02


@dataclass(frozen=True)
class Ledger:
    """The content of a ledger: `limit`, `overhead` and the use of each process, in bytes."""

    limit: int
    overhead: int
    processes: tuple[int, ...] = ()

    @property
    def used(self) -> int:
        """The use that counts against the limit, in bytes."""
        return sum(self.processes) + len(self.processes) * self.overhead


def header(limit: int, overhead: int) -> bytes:
    return _HEADER.pack(MAGIC, limit, overhead)


def read(path: Path) -> Ledger:
    """Read a ledger. Raises OSError, and ValueError if the file is no ledger or has too many locks."""
    # Not blocked by a lease (fcntl, F_SETLEASE) of the container.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(handle, SIZE + 1)
        if len(content) != SIZE or not content.startswith(MAGIC):
            raise ValueError(f"no ledger: {len(content)} bytes that start with {content[: len(MAGIC)]!r}")
        _, limit, overhead = _HEADER.unpack(content)
        return Ledger(limit, overhead, tuple(_locked(handle, 0, SLOTS, time.thread_time() + _SECONDS)))
    finally:
        os.close(handle)


def _locked(handle: int, first: int, end: int, until: float) -> Iterator[int]:
    """Give the bytes of each process with a lock in the slots from `first` to before `end`."""
    while first < end:
        if time.thread_time() > until:
            raise ValueError("the container has set too many locks on its ledger")
        start, length = first << _SLOT_BITS, (end - first) << _SLOT_BITS
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, query))
        if kind == fcntl.F_UNLCK:
            return
        # A lock of another program may start before `first`, and have no end: length 0.
        slot = max(first, start >> _SLOT_BITS)
        yield (length or 1 << _SLOT_BITS) - 1
        yield from _locked(handle, first, slot, until)
        first = slot + 1


def provide(link: Path, limit: int, overhead: int) -> None:
    """Make the ledger, or write into an existing ledger. Raises OSError."""
    try:
        file, is_new = mounted(link), False
    except OSError:  # no ledger, or a ledger of an older version, which has no link
        file, is_new = link.with_name(f"{link.name}.{os.urandom(16).hex()}"), True
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(file, flags, _MODE)
    try:
        os.fchmod(handle, _MODE)  # past the umask
        os.pwrite(handle, header(limit, overhead), 0)
        os.ftruncate(handle, SIZE)
    finally:
        os.close(handle)
    if is_new:
        link.unlink(missing_ok=True)
        link.symlink_to(file.name)


def mounted(link: Path) -> Path:
    """Give the file that a container mounts. Raises OSError."""
    return link.parent / link.readlink()


def remove(link: Path) -> None:
    """Remove the ledger, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        for path in list(link.parent.iterdir()):
            if name_of(path) == link.name:
                path.unlink(missing_ok=True)


def name_of(path: Path) -> str:
    """Give the name of the ledger that a file in the directory belongs to."""
    return path.name.partition(".")[0]
