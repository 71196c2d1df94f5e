# SPDX-License-Identifier: Apache-2.0
"""A command that runs until a signal ends it, and restarts its parts when its configuration changes."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Generic, TypeVar

from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.config.settings import AgentSettings, DraSettings, PluginSettings, TaintSettings
from tegra_device_plugin.system import log, waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch

T = TypeVar("T")

# From a start with new settings: an error that comes so soon is theirs.
NEW_SETTINGS_SECONDS = 5.0
CHECK_SECONDS = 10.0  # where no event reports changes
SETTLE_SECONDS = 0.1  # editors and copies write in several steps


class ConfigWatch(Generic[T]):
    """Reads settings with `load` and watches `file`, also behind a ConfigMap's links."""

    def __init__(self, file: Path | None, load: Callable[[], T]) -> None:
        self._file = file
        self._load = load
        self._seen: tuple[int, ...] | None = None
        self._wake = asyncio.Event()
        self._requested = False

    def read(self) -> T:
        """Give the settings as they are now. Raises ConfigError."""
        # Before the file is read, so that each later write counts as a change.
        self._seen = self._version()
        return self._load()

    def request_reload(self) -> None:
        """Make `changed` return in any case, as on SIGHUP."""
        self._requested = True
        self._wake.set()

    async def changed(self) -> None:
        """Wait until the file has changed since the last `read`, or a reload was requested."""
        if self._file is None:
            await self._wake.wait()
        else:
            with DirectoryWatch(self._file.parent, on_change=self._wake.set) as watch:
                while not self._differs(watch):
                    if await waiting.happens(self._wake, CHECK_SECONDS):
                        await asyncio.sleep(SETTLE_SECONDS)
        self._wake.clear()
        self._requested = False

    def _differs(self, watch: DirectoryWatch) -> bool:
        # Watch before the comparison, so that no change between the two is missed.
        self._wake.clear()
        watch.rearm()
        return self._requested or self._version() != self._seen

    def _version(self) -> tuple[int, ...] | None:
        """Give a value that changes with the file's content; links are followed."""
        try:
            status = self._file.stat() if self._file else None
        except OSError:
            return None
        return status and (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


logger = logging.getLogger(__name__)


S = TypeVar("S", bound=PluginSettings | DraSettings | AgentSettings | TaintSettings)


class Service(Generic[S]):
    """Waits for signals and for new settings; a subclass has the parts, in `_run_once`."""

    def __init__(self, configuration: ConfigWatch[S]) -> None:
        """Read the settings. Raises ConfigError."""
        self._configuration = configuration
        self._settings = configuration.read()
        self._fallback: S | None = None
        self._stop = asyncio.Event()
        self._ended = False
        log.configure(self._settings.log_format, self._settings.log_level)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises what a start fails with, and the errors of parts in a group.

        Not at a start with new settings: then it goes on with the old ones.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._configuration.request_reload)
        while not self._ended:
            self._stop.clear()
            begin = loop.time()
            try:
                await self._run_once()
            except* OSError as errors:
                before, self._fallback = self._fallback, None
                if before is None or loop.time() - begin > NEW_SETTINGS_SECONDS:
                    raise
                self._settings = before
                log.configure(before.log_format, before.log_level)
                self._reject(ConfigError(*map(str, log.leaves(errors))))

    async def _run_once(self) -> None:
        raise NotImplementedError

    async def _run_parts(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run all parts until a signal or a restart. Raises the errors of parts in a group."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part) for part in parts]
            await self._stop.wait()
            for task in running:
                task.cancel()

    async def _follow_configuration(self) -> None:
        while True:
            await self._configuration.changed()
            before = self._settings
            try:
                settings = self._configuration.read()
                await _check_free(settings.metrics_address, before.metrics_address)
            except ConfigError as error:
                self._reject(error)
            else:
                self._settings = settings
                log.configure(self._settings.log_format, self._settings.log_level)
                self._apply(before)

    def _reject(self, error: ConfigError) -> None:
        for problem in error.problems:
            logger.warning("configuration rejected, the old configuration stays in force: %s", problem)

    def _apply(self, before: S) -> None:
        if self._settings != before:
            self._restart(before)

    def _restart(self, before: S) -> None:
        logger.info("configuration changed: restarting")
        self._fallback = before
        self._stop.set()

    def _end(self) -> None:
        self._ended = True
        self._stop.set()


async def _check_free(address: tuple[str, int] | None, own: tuple[str, int] | None) -> None:
    """Raise ConfigError if this process cannot listen at `address`; `own` is its present address."""
    if address is None or address == own:
        return
    host, port = address
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, *_, place in found:
            with socket.create_server(place[:2], family=family, backlog=1):
                pass
    except OSError as error:
        if error.errno == errno.EADDRINUSE and own and port == own[1]:
            return  # perhaps by this process itself, which listens no longer then
        raise ConfigError(f"metricsAddress {host}:{port}: {error.strerror}: choose a free address") from error
