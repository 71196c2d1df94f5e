# SPDX-License-Identifier: Apache-2.0
"""Where built things are kept: a cache outside the checkout, by recipe."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.process import say

CHECKOUT = Path(__file__).resolve().parents[1]


def cache() -> Path:
    """Return the cache directory, made when absent: `$JETSON_K3S_CACHE`, else below XDG's."""
    own = os.environ.get("JETSON_K3S_CACHE")
    base = (
        Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jetson-k3s"
    )
    base.mkdir(parents=True, exist_ok=True)
    return base.resolve()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Take the machine-wide lock `name` (an flock in the cache, so it ends with the process)."""
    path = cache() / "locks" / f"{name.replace('/', '_')}.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that has locked {path.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cached(relative: str, build: Callable[[Path], None]) -> Path:
    """Return the cache entry `relative` (a file or a directory), built by `build` when it is absent.

    `build` gets a path that does not exist yet, in a scratch directory of its own; what it makes there is
    renamed into place when it returns, so an entry is complete or absent. Builds of one entry are serialised.
    """
    target = cache() / relative
    if target.exists():
        return target
    with locked(relative):
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = cache() / "scratch" / relative.replace("/", "_")
        # Left by a killed build: the lock is ours, so nobody is using it.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            build(scratch / target.name)
            (scratch / target.name).rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def place(source: Path, target: Path) -> None:
    """Put a copy of a cached file in place, complete or not at all; never a link, as tests damage bundles."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    shutil.copy(source, partial)
    partial.replace(target)
