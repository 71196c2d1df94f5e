# SPDX-License-Identifier: Apache-2.0
"""Mounts of the host's directories in a container: deleted ones, and those that are there.

The kubelet, a package or a person can delete a directory and make it again. The container still has the
deleted one, and what it writes reaches nobody. Only a restart of the container mounts the new directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tegra_device_plugin.system.hosttree import HostTree

# Blanks and backslashes in a mount point's name, by the kernel's mangle().
_ESCAPED = re.compile(r"\\([0-7]{3})")


class StaleMountError(OSError):
    """The mounted directory was deleted on the host."""


def check_mounts(directories: Iterable[Path]) -> None:
    """Raise StaleMountError if one of the directories was deleted under a mount of it.

    No event reports that. Without a mount, a directory that is being deleted also has no link for a moment.
    """
    for directory in directories:
        try:
            is_stale = directory.stat().st_nlink == 0 and _is_mount_point(directory)
        except OSError:  # not there, or not readable: its users report that
            continue
        if is_stale:
            raise StaleMountError(
                f"{directory} was deleted on the host, and this container still mounts the deleted "
                "directory: restart the container"
            )


def on_host(root: Path, *paths: str) -> Iterator[Path]:
    """Give these paths of the host as this process has them, those that can be there."""
    for path in paths:
        with suppress(OSError):
            yield Path(HostTree(root).real(path))


def parts_of_host(root: Path) -> tuple[str, ...] | None:
    """Give the paths of the host that are mounted below its root here; None if all of it is there.

    A pod mounts some directories of the host, and `root` itself is the container's.
    """
    points, here = _mount_points(), os.path.realpath(root).rstrip("/")
    if here in points or not here:
        return None
    return tuple(point.removeprefix(here) for point in points if point.startswith(f"{here}/")) or None


def _is_mount_point(directory: Path) -> bool:
    """True if a file system is mounted there; `Path.is_mount` misses bind mounts."""
    return os.path.realpath(directory) in _mount_points()


def _mount_points() -> frozenset[str]:
    """Give the mount points of this process (proc_pid_mountinfo(5))."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    points = (line.split(" ", 5)[4] for line in mounts.splitlines())
    return frozenset(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), point) for point in points)
