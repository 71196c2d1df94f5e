# SPDX-License-Identifier: Apache-2.0
"""`run`: wires board, kubelet, configuration and pages together, and ends all of them together."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import ConfigError
from tegra_device_plugin.config.watch import ConfigWatch
from tegra_device_plugin.kubelet.registrars import Registrars
from tegra_device_plugin.sharing.advertised import Advertised
from tegra_device_plugin.signals import Signals
from tegra_device_plugin.system import log
from tegra_device_plugin.system.counters import Counters
from tegra_device_plugin.telemetry.jtop import JtopProbe

logger = logging.getLogger(__name__)


class Daemon:
    """The plugin over all its lives: one ends and the next begins when the settings name other places."""

    def __init__(self, configuration: ConfigWatch, signals: Signals) -> None:
        """Read the settings; raises ConfigError."""
        self._configuration = configuration
        self._signals = signals
        self._settings = configuration.read()
        self._counted = Counters()
        self._life_over = asyncio.Event()
        log.configure(self._settings.log_format, self._settings.log_level)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises OSError if the metrics address is taken, and in a group what a part fails with.
        """
        self._signals.listen(self._heard)
        while not self._signals.ended:
            self._life_over.clear()
            await self._live()

    async def _live(self) -> None:
        """Start all parts, wait for the end of this life, end all parts."""
        settings, advertised = self._settings, Advertised()
        board = BoardWatch(settings, advertised)
        registrars = Registrars(settings.device_plugin_dir, advertised, self._counted)
        jtop = JtopProbe(settings.host_root)
        async with AsyncExitStack() as stack:
            if settings.metrics_address:
                from tegra_device_plugin.telemetry import httpd, pages  # noqa: PLC0415 - most of a start is imports

                views = pages.Pages(board, registrars, advertised, jtop, self._counted).by_path()
                await stack.enter_async_context(httpd.serving(*settings.metrics_address, views))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            parts = (board.run(), registrars.run(), self._follow_configuration(board), jtop.run())
            running = [tasks.create_task(part) for part in parts]
            await self._life_over.wait()
            for task in running:
                task.cancel()

    async def _follow_configuration(self, board: BoardWatch) -> None:
        while True:
            await self._configuration.changed()
            self._reload(board)

    def _reload(self, board: BoardWatch) -> None:
        before = self._settings
        try:
            self._settings = self._configuration.read()
        except ConfigError as error:
            self._counted.refused_config_reloads += 1
            for problem in error.problems:
                logger.warning("configuration refused, the old one stays in force: %s", problem)
            return
        self._counted.config_reloads += 1
        log.configure(self._settings.log_format, self._settings.log_level)
        if not self._settings.same_places(before):
            logger.info("configuration changed: starting anew")
            self._life_over.set()
            return
        unchanged = self._settings == before
        logger.info("configuration read again%s", ": nothing has changed" if unchanged else "")
        board.use(self._settings)

    def _heard(self) -> None:
        if self._signals.reload:
            self._signals.reload = False
            self._configuration.ask()
        if self._signals.ended:
            self._life_over.set()
