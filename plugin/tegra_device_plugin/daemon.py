# SPDX-License-Identifier: Apache-2.0
"""`run`: wires board, kubelet, configuration and pages together, and ends all of them together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import ConfigError, Settings
from tegra_device_plugin.config.watch import ConfigWatch
from tegra_device_plugin.kubelet.registration import Registrar, sweep
from tegra_device_plugin.kubelet.server import Advertised
from tegra_device_plugin.system import log
from tegra_device_plugin.telemetry.exposition import Counters
from tegra_device_plugin.telemetry.jtop import JtopProbe

logger = logging.getLogger(__name__)


async def run(settings: Settings, load: Callable[[], Settings], file: Path | None) -> Settings | None:
    """Serve until SIGTERM or SIGINT; gives settings to begin anew with, or None to end.

    `load` reads the settings again, on SIGHUP and when `file` changes. Raises OSError if the metrics address
    is taken.
    """
    loop = asyncio.get_running_loop()
    counted = Counters()
    advertised = Advertised()
    board = BoardWatch(settings, advertised)
    registrar = Registrar(settings.device_plugin_dir, advertised, counted)
    jtop = JtopProbe(settings.host_root)
    outcome: asyncio.Future[Settings | None] = loop.create_future()

    def end(result: Settings | None) -> None:
        if not outcome.done():
            outcome.set_result(result)

    def reload() -> None:
        nonlocal settings
        try:
            changed = load()
        except ConfigError as error:
            counted.refused_config_reloads += 1
            for problem in error.problems:
                logger.warning("configuration refused, the old one stays in force: %s", problem)
            return
        counted.config_reloads += 1
        if not changed.same_places(settings):
            logger.info("configuration changed: starting anew")
            end(changed)
            return
        logger.info("configuration read again%s", "" if changed != settings else ": nothing has changed")
        settings = changed
        log.configure(settings.log_format, settings.log_level)
        board.use(settings)

    configuration = ConfigWatch(file, reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, None)
    loop.add_signal_handler(signal.SIGHUP, configuration.ask)

    sweep(settings.device_plugin_dir)
    async with AsyncExitStack() as stack:
        if settings.metrics_address:
            from tegra_device_plugin.telemetry import httpd, pages  # noqa: PLC0415 - most of a start is imports

            views = pages.Pages(board, registrar, advertised, jtop, counted).by_path()
            await stack.enter_async_context(httpd.serving(*settings.metrics_address, views))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = [tasks.create_task(part.run()) for part in (board, registrar, configuration, jtop)]
        result = await outcome
        for task in running:
            task.cancel()
    return result
