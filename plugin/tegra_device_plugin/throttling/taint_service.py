# SPDX-License-Identifier: Apache-2.0
"""`throttle-taint`: starts and stops the taint and its pages together."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from tegra_device_plugin.config.settings import TaintSettings
from tegra_device_plugin.service import Service
from tegra_device_plugin.system.api_server import ApiServer, connected
from tegra_device_plugin.throttling.node_taint import NodeTaint

FIELD_MANAGER = "tegra-throttle-taint"

logger = logging.getLogger(__name__)


class ThrottleTaint(Service[TaintSettings]):
    """The command. It fails with OSError where the metrics address is taken or there are no credentials."""

    async def _run_once(self) -> None:
        settings = self._settings
        logger.info("node %s, taint until %d s without throttling", settings.node_name, settings.remove_after)
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(connected(ApiServer(settings.node_name, FIELD_MANAGER)))
            taint = NodeTaint(settings.host_root, settings.remove_after)
            stack.push_async_callback(taint.withdraw, server)
            if settings.metrics_address:
                from tegra_device_plugin.telemetry import httpd  # noqa: PLC0415 - most of a start is imports
                from tegra_device_plugin.throttling.taint_pages import Pages  # noqa: PLC0415 - the same

                pages = Pages(taint)
                await stack.enter_async_context(httpd.serving(*settings.metrics_address, pages.by_path()))
            await self._run_parts(taint.run(server), self._follow_configuration())
