# SPDX-License-Identifier: Apache-2.0
"""Notices that the configuration file has changed, or that somebody asks for it to be read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tegra_device_plugin.system.directorywatch import DirectoryWatch

LOOK_SECONDS = 10.0  # the safety net where changes are not heard
SETTLE_SECONDS = 0.1  # editors and copies write in several steps


class ConfigWatch:
    """Calls `on_change` when the content behind `file` may have changed, also behind a ConfigMap's links."""

    def __init__(self, file: Path | None, on_change: Callable[[], None]) -> None:
        self._file = file
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._asked = False

    def ask(self) -> None:
        """Call `on_change` in any case, as on SIGHUP."""
        self._asked = True
        self._wake.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        if self._file is None:
            while True:
                await self._next(None)
        with DirectoryWatch(self._file.parent, self._wake.set) as watch:
            seen = _version(self._file)
            while True:
                watch.rearm()
                await self._next(LOOK_SECONDS)
                if (now := _version(self._file)) != seen:
                    seen = now
                    self._on_change()

    async def _next(self, longest: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), longest)
            await asyncio.sleep(SETTLE_SECONDS)
        self._wake.clear()
        if self._asked:
            self._asked = False
            self._on_change()


def _version(file: Path) -> tuple[int, ...] | None:
    """What changes with the file's content; links are followed."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
