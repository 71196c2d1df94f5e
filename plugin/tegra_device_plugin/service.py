# SPDX-License-Identifier: Apache-2.0
"""A command that stays, over all its lives: one ends and the next begins when its settings change."""

from __future__ import annotations

import asyncio
import logging
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


S = TypeVar("S", bound=Settings)


class Service(Generic[S]):
    """Waits for signals and for other settings; a subclass says in `_run_once` what a life is."""

    def __init__(self, configuration: ConfigWatch[S], signals: Signals) -> None:
        """Read the settings. Raises ConfigError."""
        self._configuration = configuration
        self._signals = signals
        self._settings = configuration.read()
        self._stop = asyncio.Event()
        log.configure(self._settings.log_format, self._settings.log_level)

    async def run(self) -> None:
        """Live until SIGTERM or SIGINT. Raises what a life fails with, in a group what a part of it does."""
        self._signals.listen(self._heard)
        while not self._signals.ended:
            self._stop.clear()
            await self._run_once()

    async def _run_once(self) -> None:
        """Start all parts, wait for the end of this life, end all parts."""
        raise NotImplementedError

    async def _follow_configuration(self) -> None:
        while True:
            await self._configuration.changed()
            before = self._settings
            try:
                self._settings = self._configuration.read()
            except ConfigError as error:
                self._refused(error)
            else:
                log.configure(self._settings.log_format, self._settings.log_level)
                self._changed(before)

    def _refused(self, error: ConfigError) -> None:
        for problem in error.problems:
            logger.warning("configuration refused, the old one stays in force: %s", problem)

    def _changed(self, before: S) -> None:
        if self._settings != before:
            self._restart()

    def _restart(self) -> None:
        logger.info("configuration changed: starting anew")
        self._stop.set()

    def _heard(self) -> None:
        if self._signals.reload:
            self._signals.reload = False
            self._configuration.ask()
        if self._signals.ended:
            self._stop.set()
