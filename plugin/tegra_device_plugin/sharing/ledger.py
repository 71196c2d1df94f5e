# SPDX-License-Identifier: Apache-2.0
"""The ledger of a container's GPU memory: a file that the limit library of each of its processes locks.

The container mounts it read-only. plugin/gpu_limit/ledger.h has the format: a header of 64 bytes, followed by
the locks, which are in the kernel's memory and end with their process.

A ledger is a link with the name of its devices or claim. The link leads to the mounted file, whose name
cannot be guessed. Only root can read the directory.

The kubelet and CDI specs keep the mounted file's path for as long as the container exists. So the path has to
be the same again after the files were removed, or lost by a power cut: it follows from the ledger's name and
a secret key of the board. Release 0.1.0 chose it by chance; such a file keeps its name as long as its link.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.system.atomicfile import make_file, replace_file

MAGIC = b"TGLEDGR2"
SLOTS = 64
_SLOT_BITS = 56
_MODE = 0o644  # the container's processes may be of any user

KEY = "ledger-key"
_KEY_BYTES = 32
_KEY_MODE = 0o600
_SECRET_DIGITS = 32  # hexadecimal

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


def key(directory: Path) -> bytes:
    """Give the secret key of the names, which is made once. Raises OSError."""
    path = directory / KEY
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        make_file(path, os.urandom(_KEY_BYTES), _KEY_MODE)
        found = path.read_bytes()  # another instance may have been faster
    if len(found) != _KEY_BYTES:  # damaged: only new ledgers need a new one
        found = os.urandom(_KEY_BYTES)
        replace_file(path, found, _KEY_MODE)
    return found


def provide(link: Path, limit: int, overhead: int, key: Callable[[], bytes]) -> None:
    """Make the ledger, or write into an existing ledger. Raises OSError, and leaves no new file then."""
    try:
        file, has_link = mounted(link), True
    except OSError:  # no ledger, or a ledger of an older version, which has no link
        file, has_link = link.with_name(f"{link.name}.{_secret(link.name, key())}"), False
    is_new = not os.path.lexists(file)
    try:
        _write(file, header(limit, overhead))
        if not has_link:
            link.unlink(missing_ok=True)
            link.symlink_to(file.name)
    except OSError:
        if is_new:
            file.unlink(missing_ok=True)
        raise


def _secret(name: str, key: bytes) -> str:
    import hmac  # noqa: PLC0415 - OpenSSL takes 3 MiB, which plugins without limits do not need

    return hmac.digest(key, name.encode(), "sha256").hex()[:_SECRET_DIGITS]


def _write(file: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(file, flags, _MODE)
    try:
        os.fchmod(handle, _MODE)  # past the umask
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)


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
