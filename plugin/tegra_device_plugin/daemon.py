# SPDX-License-Identifier: Apache-2.0
"""`run`: wires board, kubelet, configuration and pages together, and ends all of them together."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import ConfigError, Settings
from tegra_device_plugin.config.watch import ConfigWatch
from tegra_device_plugin.kubelet import onlyone
from tegra_device_plugin.kubelet.registrars import Registrars
from tegra_device_plugin.lives import Lives
from tegra_device_plugin.sharing.advertised import Advertised
from tegra_device_plugin.signals import Signals
from tegra_device_plugin.system.counters import Counters
from tegra_device_plugin.telemetry.jtop import JtopProbe

logger = logging.getLogger(__name__)


class Daemon(Lives):
    """The plugin: other settings end its life only where they name other places.

    It fails with OSError where the metrics address is taken or the DRA driver serves this board.
    """

    def __init__(self, configuration: ConfigWatch, signals: Signals) -> None:
        """Read the settings; raises ConfigError."""
        super().__init__(configuration, signals, _for_device_plugin)
        self._counted = Counters()
        self._board: BoardWatch | None = None

    async def _live(self) -> None:
        """Start all parts, wait for the end of this life, end all parts."""
        settings, advertised = self._settings, Advertised()
        onlyone.refuse_beside_dra(settings.device_plugin_dir)
        board = self._board = BoardWatch(settings, advertised)
        registrars = Registrars(settings.device_plugin_dir, advertised, self._counted)
        jtop = JtopProbe(settings.host_root)
        async with AsyncExitStack() as stack:
            if settings.metrics_address:
                from tegra_device_plugin.telemetry import httpd, pages  # noqa: PLC0415 - most of a start is imports

                views = pages.Pages(board, registrars, advertised, jtop, self._counted).by_path()
                await stack.enter_async_context(httpd.serving(*settings.metrics_address, views))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            parts = (board.run(), registrars.run(), self._follow_configuration(), jtop.run())
            running = [tasks.create_task(part) for part in parts]
            await self._life_over.wait()
            for task in running:
                task.cancel()

    def _refused(self, error: ConfigError) -> None:
        self._counted.refused_config_reloads += 1
        super()._refused(error)

    def _changed(self, before: Settings) -> None:
        self._counted.config_reloads += 1
        if not self._settings.same_places(before):
            self._begin_anew()
            return
        unchanged = self._settings == before
        logger.info("configuration read again%s", ": nothing has changed" if unchanged else "")
        if self._board:
            self._board.use(self._settings)


def _for_device_plugin(settings: Settings) -> Settings:
    """Give the settings unless they are for the other API. Raises ConfigError."""
    if settings.dra:
        raise ConfigError(
            ["sharing.dra is served by the command `dra`, not by `run`: leave it out, or run the DRA driver"]
        )
    return settings
