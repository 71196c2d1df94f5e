# SPDX-License-Identifier: Apache-2.0
"""A command that runs until a signal ends it, and starts its parts again when its settings change."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Generic, Protocol, TypeVar

from tegra_device_plugin.config.settings import ConfigError
from tegra_device_plugin.config.watch import ConfigWatch
from tegra_device_plugin.signals import Signals
from tegra_device_plugin.system import log

logger = logging.getLogger(__name__)


class Settings(Protocol):
    """What every service has in its settings."""

    @property
    def log_format(self) -> str:
        """Give `text` or `json`."""

    @property
    def log_level(self) -> str:
        """Give the lowest level of log lines."""

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Give host and port of the metrics pages."""


S = TypeVar("S", bound=Settings)


class Service(Generic[S]):
    """Waits for signals and for new settings; a subclass has the parts, in `_run_once`."""

    def __init__(self, configuration: ConfigWatch[S], signals: Signals) -> None:
        """Read the settings. Raises ConfigError."""
        self._configuration = configuration
        self._signals = signals
        self._settings = configuration.read()
        self._stop = asyncio.Event()
        log.configure(self._settings.log_format, self._settings.log_level)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises what a start fails with, and the errors of parts in a group."""
        self._signals.listen(self._heard)
        while not self._signals.ended:
            self._stop.clear()
            await self._run_once()

    async def _run_once(self) -> None:
        """Start all parts, wait for `_stop`, end all parts."""
        raise NotImplementedError

    async def _follow_configuration(self) -> None:
        while True:
            await self._configuration.changed()
            before = self._settings
            try:
                settings = self._configuration.read()
                await _check_free(settings.metrics_address, before.metrics_address)
            except ConfigError as error:
                self._refused(error)
            else:
                self._settings = settings
                log.configure(self._settings.log_format, self._settings.log_level)
                self._changed(before)

    def _refused(self, error: ConfigError) -> None:
        for problem in error.problems:
            logger.warning("configuration refused, the old one stays in force: %s", problem)

    def _changed(self, before: S) -> None:
        if self._settings != before:
            self._restart()

    def _restart(self) -> None:
        logger.info("configuration changed: restarting")
        self._stop.set()

    def _heard(self) -> None:
        if self._signals.reload:
            self._signals.reload = False
            self._configuration.ask()
        if self._signals.ended:
            self._stop.set()


async def _check_free(address: tuple[str, int] | None, own: tuple[str, int] | None) -> None:
    """Raise ConfigError if this process cannot listen at `address`; `own` is its present address."""
    if address is None or (own and address[1] == own[1]):
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
        raise ConfigError(f"metricsAddress {host}:{port}: {error.strerror}: choose a free address") from error
