# SPDX-License-Identifier: Apache-2.0
"""The configuration in force, and when it has to be read again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch

S = TypeVar("S")

LOOK_SECONDS = 10.0  # the safety net where changes are not heard
SETTLE_SECONDS = 0.1  # editors and copies write in several steps


class ConfigWatch(Generic[S]):
    """Reads settings with `load` and watches `file`, also behind a ConfigMap's links."""

    def __init__(self, file: Path | None, load: Callable[[], S]) -> None:
        self._file = file
        self._load = load
        self._seen: tuple[int, ...] | None = None
        self._wake = asyncio.Event()
        self._asked = False

    def read(self) -> S:
        """Give the settings as they are now. Raises ConfigError."""
        # Before the file is read, so that each later write counts as a change.
        self._seen = self._version()
        return self._load()

    def ask(self) -> None:
        """Make `changed` end in any case, as on SIGHUP."""
        self._asked = True
        self._wake.set()

    async def changed(self) -> None:
        """Wait until the file may say something else than at the last `read`, or until asked."""
        if self._file is None:
            await self._wake.wait()
        else:
            with DirectoryWatch(self._file.parent, self._wake.set) as watch:
                while not self._differs(watch):
                    if await waiting.happens(self._wake, LOOK_SECONDS):
                        await asyncio.sleep(SETTLE_SECONDS)
        self._wake.clear()
        self._asked = False

    def _differs(self, watch: DirectoryWatch) -> bool:
        # First listen, then look: a change between the two is heard.
        self._wake.clear()
        watch.rearm()
        return self._asked or self._version() != self._seen

    def _version(self) -> tuple[int, ...] | None:
        """What changes with the file's content; links are followed."""
        try:
            status = self._file.stat() if self._file else None
        except OSError:
            return None
        return status and (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
