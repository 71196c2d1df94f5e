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
from tegra_device_plugin.signals import Signals
from tegra_device_plugin.system import log
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


class Agent:
    """The agent over all its lives: one ends and the next begins when the settings change."""

    def __init__(self, configuration: ConfigWatch, choice: Choice, signals: Signals, kernel: Kernel) -> None:
        """Read the settings; raises ConfigError."""
        if choice.policy == "fixed-share":
            raise ConfigError(
                [
                    "--qos-policy fixed-share: nvgpu cannot hold a pod to its share while others are idle: "
                    "their time goes to whoever is busy. Use burst-share, which holds under contention"
                ]
            )
        self._configuration = configuration
        self._choice = choice
        self._signals = signals
        self._kernel = kernel
        self._settings = configuration.read()
        if choice.policy == "burst-share" and not sold(self._settings).core:
            raise ConfigError(
                [
                    "--qos-policy burst-share: this configuration sells no percents of the GPU's time, "
                    "so there are no weights: it needs sharing.units with a preset that has them"
                ]
            )
        self._life_over = asyncio.Event()
        log.configure(self._settings.log_format, self._settings.log_level)

    async def run(self) -> None:
        """Watch until SIGTERM or SIGINT.

        Raises OSError if the metrics address is taken or this kernel cannot do what the mode needs, and in a
        group what a part fails with.
        """
        self._signals.listen(self._heard)
        while not self._signals.ended:
            self._life_over.clear()
            await self._live()

    async def _live(self) -> None:
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
            await self._life_over.wait()
            for task in running:
                task.cancel()

    async def _follow_configuration(self) -> None:
        while True:
            await self._configuration.changed()
            before = self._settings
            try:
                self._settings = self._configuration.read()
            except ConfigError as error:
                for problem in error.problems:
                    logger.warning("configuration refused, the old one stays in force: %s", problem)
                continue
            if self._settings != before:
                log.configure(self._settings.log_format, self._settings.log_level)
                logger.info("configuration changed: starting anew")
                self._life_over.set()

    def _heard(self) -> None:
        if self._signals.reload:
            self._signals.reload = False
            self._configuration.ask()
        if self._signals.ended:
            self._life_over.set()
