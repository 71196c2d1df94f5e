# SPDX-License-Identifier: Apache-2.0
"""The part of the cgroup tree that is this board's: a virtual one sees the whole machine's with cgroup v1."""

from collections.abc import Iterable
from pathlib import Path


def root(own: str) -> str:
    """Return the board's cgroup, from the text of /proc/self/cgroup of one of its services."""
    paths = dict(line.split(":", 2)[1:] for line in own.splitlines())
    path = paths.get("memory") or paths.get("", "/")  # v1, v2
    return path.partition("/system.slice")[0] or "/"


def hierarchies(mounts: str) -> list[Path]:
    """Return where the hierarchies of cgroup v1 are mounted, from the text of /proc/self/mounts."""
    entries = [line.split() for line in mounts.splitlines()]
    return [Path(where) for _, where, kind, *_ in entries if kind == "cgroup"]


def ensure(cgroup: str, where: Iterable[Path]) -> None:
    """Make a cgroup in every hierarchy: Docker leaves some out that a kubelet looks for."""
    for hierarchy in where:
        (hierarchy / cgroup.lstrip("/")).mkdir(parents=True, exist_ok=True)
