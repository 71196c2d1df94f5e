# SPDX-License-Identifier: Apache-2.0
"""Watches directories for changes by inotify, if the kernel allows it.

An event only wakes its owner, which compares facts. So a missed or needless event costs time and never
correctness. Where inotify instances are exhausted, the owner compares more often.
"""

import asyncio
import ctypes
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

# linux/inotify.h
_IN_ATTRIB = 0x4
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x1000000
_NAMES = (
    _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
)
_CONTENT = _IN_ATTRIB | _IN_CLOSE_WRITE
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 16384


class Identity(NamedTuple):
    """Identifies a file, also if a later file has the same inode number."""

    device: int
    inode: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Give the identity of the entry at `path` (links not followed), None without an entry or access."""
        try:
            status = os.lstat(path)
        except OSError:
            return None
        return cls(status.st_dev, status.st_ino, status.st_ctime_ns)


class DirectoryWatch:
    """Calls `on_change` when an entry of the directories changes, if the kernel allows inotify.

    Use as a context manager inside a running event loop. Call `rearm` with every observation: it follows a
    directory that was removed and made again. With `names_only`, a write to an entry is no event: in /dev
    each use of /dev/null would be one.
    """

    def __init__(self, *directories: Path, on_change: Callable[[], None], names_only: bool = False) -> None:
        self._directories = directories
        self._on_change = on_change
        self._mask = _NAMES if names_only else _NAMES | _CONTENT
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int | None = None
        self._watched: dict[Path, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        self.rearm()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._close()

    def rearm(self) -> bool:
        """Watch the present directories; True if events will report all their changes."""
        reported = [self._rearm(directory) for directory in self._directories]
        return all(reported)

    def _rearm(self, directory: Path) -> bool:
        try:
            status = directory.stat()
        except OSError:
            self._watched.pop(directory, None)
            return False
        here = (status.st_dev, status.st_ino)
        if self._watched.get(directory) == here:
            return True
        if self._fd is None and not self._open():
            return False
        if self._libc.inotify_add_watch(self._fd, os.fsencode(directory), self._mask) < 0:
            self._watched.pop(directory, None)
            return False
        self._watched[directory] = here
        return True

    def _open(self) -> bool:
        fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:  # EMFILE: fs.inotify.max_user_instances is used up
            return False
        self._fd = fd
        asyncio.get_running_loop().add_reader(fd, self._read, fd)
        return True

    def _close(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
        self._fd = None
        self._watched.clear()

    def _read(self, fd: int) -> None:
        try:
            events = os.read(fd, _BUFFER_BYTES)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                self._close()
            return
        offset = 0
        while offset < len(events):
            _, mask, _, length = _EVENT.unpack_from(events, offset)
            offset += _EVENT.size + length
            if mask & (_IN_IGNORED | _IN_MOVE_SELF):
                self._watched.clear()  # to add a watch again changes nothing
        self._on_change()
