# SPDX-License-Identifier: Apache-2.0
"""`agent`: wires guard, weights and pages together, and ends them together."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tegra_device_plugin.agent.guard import Guard, Mode
from tegra_device_plugin.agent.memory import MemoryUse
from tegra_device_plugin.agent.nvgpu import Kernel
from tegra_device_plugin.agent.pods import Pods
from tegra_device_plugin.agent.shares import Units
from tegra_device_plugin.agent.weights import Weights
from tegra_device_plugin.config.settings import ConfigError, Settings
from tegra_device_plugin.config.watch import ConfigWatch
from tegra_device_plugin.service import Service
from tegra_device_plugin.signals import Signals
from tegra_device_plugin.system.hosttree import HostTree

# MetaX's words. fixed-share is known, so that whoever asks for it hears why it is not to be had.
QosPolicy = Literal["best-effort", "fixed-share", "burst-share"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What the command line says besides the settings."""

    mode: Mode
    policy: QosPolicy
    pod_resources: Path


def sold(settings: Settings) -> Units:
    """The resources that the plugin sells shares as with these settings; no names where it sells none."""
    units = settings.units
    if units is None:
        return Units("", "", lambda _ids: 0)
    return Units(units.core.name if units.core else "", units.memory.name, units.memory_bytes)


class Agent(Service):
    """The agent.

    It fails with OSError where the metrics address is taken or this kernel cannot do what the mode needs.
    """

    def __init__(self, configuration: ConfigWatch, choice: Choice, signals: Signals, kernel: Kernel) -> None:
        """Read the settings; raises ConfigError."""
        if choice.policy == "fixed-share":
            raise ConfigError(
                [
                    "--qos-policy fixed-share: nvgpu cannot hold a pod to its share while others are idle: "
                    "their time goes to whoever is busy. Use burst-share, which holds under contention"
                ]
            )
        super().__init__(configuration, signals)
        self._choice = choice
        self._kernel = kernel
        if choice.policy == "burst-share" and not sold(self._settings).core:
            raise ConfigError(
                [
                    "--qos-policy burst-share: this configuration sells no percents of the GPU's time, "
                    "so there are no weights: it needs sharing.units with a preset that has them"
                ]
            )

    async def _run_once(self) -> None:
        """Start all parts, wait for the end of this life, end all parts."""
        settings, choice = self._settings, self._choice
        host = HostTree(settings.host_root)
        pods = Pods(choice.pod_resources, host, sold(settings))
        guard = Guard(MemoryUse(settings.host_root), host, pods, choice.mode)
        weights = Weights(host, pods, self._kernel) if choice.policy == "burst-share" else None
        logger.info("mode %s, policy %s", choice.mode, choice.policy)
        async with AsyncExitStack() as stack:
            if settings.metrics_address:
                from tegra_device_plugin.agent.pages import Pages  # noqa: PLC0415 - most of a start is imports
                from tegra_device_plugin.telemetry import httpd  # noqa: PLC0415 - the same

                pages = Pages(pods, guard, weights, mode=choice.mode, qos_policy=choice.policy)
                await stack.enter_async_context(httpd.serving(*settings.metrics_address, pages.by_path()))
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            parts = [guard.run(), self._follow_configuration()]
            if weights:
                parts.append(weights.run())
            running = [tasks.create_task(part) for part in parts]
            await self._stop.wait()
            for task in running:
                task.cancel()
