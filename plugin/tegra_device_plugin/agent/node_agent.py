# SPDX-License-Identifier: Apache-2.0
"""`agent`: starts and stops guard, weights and pages together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tegra_device_plugin.agent.guard import Guard
from tegra_device_plugin.agent.memory import MemoryUse
from tegra_device_plugin.agent.nvgpu import Kernel
from tegra_device_plugin.agent.pods import CONTAINER_LOGS, POD_LOGS, Pods, UnitResources
from tegra_device_plugin.agent.weights import Weights
from tegra_device_plugin.config.settings import WEIGHTED, AgentSettings
from tegra_device_plugin.service import ConfigWatch, Service
from tegra_device_plugin.system import mounts
from tegra_device_plugin.system.hosttree import HostTree

if TYPE_CHECKING:
    from tegra_device_plugin.agent.unused import Unused

logger = logging.getLogger(__name__)


def unit_resources(settings: AgentSettings) -> UnitResources:
    units = settings.units
    if units is None:
        return UnitResources()
    return UnitResources(units.core.name if units.core else "", units.memory.name, units.memory_bytes)


def mounted_directories(settings: AgentSettings) -> Iterator[Path]:
    """Give directories of the host that can be deleted under the container's mount."""
    yield settings.pod_resources.parent
    yield from mounts.on_host(settings.host_root, POD_LOGS, CONTAINER_LOGS)


class Agent(Service[AgentSettings]):
    """The agent.

    It fails with OSError where the metrics address is taken or this kernel lacks a requirement of the mode.
    """

    def __init__(self, configuration: ConfigWatch[AgentSettings], kernel: Kernel) -> None:
        """Read the settings. Raises ConfigError."""
        super().__init__(configuration)
        self._kernel = kernel

    async def _run_once(self) -> None:
        settings = self._settings
        host = HostTree(settings.host_root)
        pods = Pods(settings.pod_resources, host, unit_resources(settings))
        overhead = settings.units.context_overhead if settings.units else 0
        guard = Guard(MemoryUse(settings.host_root), host, pods, settings.mode, overhead)
        weights = self._weights(host, pods)
        unused = self._unused(guard, host, pods)
        logger.info("mode %s, policy %s", settings.mode, settings.qos_policy)
        async with AsyncExitStack() as stack:
            if settings.metrics_address:
                from tegra_device_plugin.agent.agent_pages import Pages  # noqa: PLC0415 - most of a start is imports
                from tegra_device_plugin.telemetry import httpd  # noqa: PLC0415 - the same

                pages = Pages(
                    pods,
                    guard,
                    weights,
                    lambda: mounted_directories(settings),
                    settings.foreign_metrics,
                    unused=unused,
                    mode=settings.mode,
                    qos_policy=settings.qos_policy,
                )
                await stack.enter_async_context(httpd.serving(*settings.metrics_address, pages.by_path()))
            parts = [guard.run(*([unused.observe] if unused else [])), self._follow_configuration()]
            if weights:
                parts.append(weights.run())
            await self._run_parts(*parts)

    def _weights(self, host: HostTree, pods: Pods) -> Weights | None:
        if self._settings.qos_policy not in WEIGHTED:
            return None
        policies = None
        if self._settings.qos_policy == "per-pod":
            from tegra_device_plugin.agent.pod_policies import PodPolicies, sockets  # noqa: PLC0415 - off by default

            policies = PodPolicies(lambda: sockets(host), pods)
        return Weights(host, pods, self._kernel, policies)

    def _unused(self, guard: Guard, host: HostTree, pods: Pods) -> Unused | None:
        settings = self._settings
        if settings.unused_after is None:
            return None
        from tegra_device_plugin.agent.unused import Gpu, Unused  # noqa: PLC0415 - off by default

        units = settings.units
        gpu = Gpu(
            frozenset(units.resources if units else {settings.resource}),
            units.memory.name if units else "",
            settings.gpu_limit_dir,
        )
        return Unused(guard, host, pods, gpu, settings.unused_after)
