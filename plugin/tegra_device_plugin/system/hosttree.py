# SPDX-License-Identifier: Apache-2.0
"""Reading a host's files below a root directory: bounded, without waiting, never outside the root."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from pathlib import Path

_MAX_LINKS = 40  # the kernel's own limit (linux/namei.h, MAXSYMLINKS)
_MAGIC = re.compile(r"[*?[]")
_READ_LIMIT = 4096  # bytes; a sysfs attribute has at most a page
_LARGE_LIMIT = 1 << 20
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_own_shortage(error: OSError) -> bool:
    """True if this process or machine lacks descriptors or memory: not a fact about the file."""
    return error.errno in _SHORTAGES


def raise_own_shortage(error: OSError) -> None:
    """Raise `error` if it is such a shortage."""
    if is_own_shortage(error):
        raise error


class HostTree:
    """A host's file system seen at `root`. Paths are the host's own: absolute, as strings.

    Methods that give None or nothing for a file that cannot be read raise OSError for a shortage of
    descriptors or memory (`is_own_shortage`).

    Symbolic links are followed here and not by the kernel, so that an absolute one (/proc/device-tree) stays
    below the root and no link leads out of it. Strings and `os` take a third of the time of Path, for
    several hundred calls per detection.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root).rstrip("/")

    def resolve(self, path: str) -> str:
        """The host path without links. Raises OSError when something on the way does not exist."""
        _check(path)
        pending = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = os.readlink("/".join((self._root, *done, part)))  # noqa: PTH115 - see the class
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: it exists and is no link
                    raise
                done.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done.clear()
            pending.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def real(self, path: str) -> str:
        """Give the path of the entry for this process, of any type. Raises OSError as `resolve` does."""
        _check(path)
        parent, _, name = path.rpartition("/")
        return f"{self._root}{self.resolve(parent).rstrip('/')}/{name}"

    def link(self, path: str) -> str | None:
        """Give the result of `resolve`, None if it fails."""
        try:
            return self.resolve(path)
        except OSError as error:
            raise_own_shortage(error)
            return None

    def read(self, path: str, limit: int = _READ_LIMIT) -> bytes:
        """The file's first `limit` bytes. Raises OSError, also if a sensor's driver rejects the read."""
        file = os.open(
            self._root + self.resolve(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
        try:
            return os.read(file, limit)
        finally:
            os.close(file)

    def text(self, path: str) -> str | None:
        """The file's text without surrounding white space and NULs; None when it cannot be read."""
        try:
            return self.read(path).decode("utf-8", "replace").strip("\0 \t\r\n")
        except OSError as error:
            raise_own_shortage(error)
            return None

    def text_of(self, path: str, limit: int = _LARGE_LIMIT) -> str | None:
        """The text of a larger file, which the kernel gives in parts; None when it cannot be read."""
        try:
            file = os.open(self._root + self.resolve(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(file, "rb", buffering=0) as content:
                parts = bytearray()
                while len(parts) < limit and (part := content.read(_READ_LIMIT)):
                    parts += part
                return parts.decode("utf-8", "replace")
        except OSError as error:
            raise_own_shortage(error)
            return None

    def strings(self, path: str) -> tuple[str, ...]:
        """The NUL-separated strings of a device tree property; none when it cannot be read."""
        text = self.text(path)
        return tuple(part for part in text.split("\0") if part) if text else ()

    def names(self, path: str) -> list[str]:
        """The directory's entries in order; none when it cannot be read."""
        try:
            return sorted(os.listdir(self._root + self.resolve(path)))  # noqa: PTH208 - see the class
        except OSError as error:
            raise_own_shortage(error)
            return []

    def target(self, path: str) -> str | None:
        """Give the target in the link at `path`; None if there is no link."""
        try:
            return os.readlink(self.real(path))  # noqa: PTH115 - see the class
        except OSError as error:
            raise_own_shortage(error)
            return None

    def glob(self, pattern: str) -> list[str]:
        """The entries that match, in order; links count, wherever they lead.

        `*`, `?` and `[...]` stand for characters of one name.
        """
        found = [""]
        for part in pattern.strip("/").split("/"):
            found = [
                f"{folder}/{name}"
                for folder in found
                for name in (fnmatch.filter(self.names(folder), part) if _MAGIC.search(part) else [part])
            ]
        return [path for path in found if self._exists(path)]

    def _exists(self, path: str) -> bool:
        try:
            os.lstat(self.real(path))
        except OSError as error:
            raise_own_shortage(error)
            return False
        return True

    def status(self, path: str) -> os.stat_result | None:
        """The file's stat(2), None if there is no file."""
        try:
            return os.lstat(self._root + self.resolve(path))
        except OSError as error:
            raise_own_shortage(error)
            return None

    def is_node(self, path: str) -> bool:
        """Whether an entry other than a directory is there; simulated boards have plain files in /dev."""
        status = self.status(path)
        return status is not None and not stat.S_ISDIR(status.st_mode)


def _check(path: str) -> None:
    """Raise FileNotFoundError for a path with a NUL, which `os` would refuse with a ValueError."""
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
