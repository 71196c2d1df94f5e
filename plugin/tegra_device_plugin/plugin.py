# SPDX-License-Identifier: Apache-2.0
"""`run`: starts and stops board, kubelet, configuration and pages together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.detection import POWER_MODE_DIRECTORY, Detection
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.boardwatch import BoardWatch, Prerequisites
from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.kubelet import driver_conflict
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources, Counters
from tegra_device_plugin.kubelet.registrar import Registrars
from tegra_device_plugin.kubelet.sockets import Instance
from tegra_device_plugin.kubelet.unused_ledgers import UnusedLedgers
from tegra_device_plugin.service import ConfigWatch, Service
from tegra_device_plugin.sharing import koordinator
from tegra_device_plugin.sharing.memory_limit import LimitFiles, MemoryTotal
from tegra_device_plugin.sharing.resources import make_resources
from tegra_device_plugin.system import mounts
from tegra_device_plugin.telemetry import jtop, jtop_facts

if TYPE_CHECKING:
    from tegra_device_plugin.devicewatch import DeviceWatch

DEVICES = "devices"

logger = logging.getLogger(__name__)


class ResourcePublisher:
    """Advertises the extended resources of the GPU at each observation of the board."""

    def __init__(self, advertised: AdvertisedResources) -> None:
        self._advertised = advertised

    def publish(
        self, settings: PluginSettings, found: Detection, health: Health, limit_problem: Health | None
    ) -> None:
        resources = make_resources(settings, found.gpu.device_nodes, health, limit_problem)
        self._advertised.advertise(resources)

    def withdraw(self) -> None:
        """Advertise nothing: a node without a GPU has no such resource."""
        self._advertised.advertise(())


class DevicePlugin(Service[PluginSettings]):
    """The plugin: new settings restart its parts only where they name other places.

    It fails with OSError where the metrics address is taken or the DRA driver serves this board.
    """

    def __init__(self, configuration: ConfigWatch[PluginSettings], *, standby: bool = False) -> None:
        """Read the settings; raises ConfigError. `standby`: serve only while no other instance does."""
        super().__init__(configuration)
        self._instance = Instance(standby=standby)
        self._counted = Counters()
        self._board: BoardWatch[PluginSettings] | None = None
        self._devices: DeviceWatch | None = None
        self._gpu_lock = driver_conflict.GpuLock(for_dra=False)

    async def _run_once(self) -> None:
        settings = self._settings
        advertised = AdvertisedResources(DEVICES) if settings.devices else AdvertisedResources()
        driver_conflict.refuse_beside_dra(settings.device_plugin_dir)
        board = self._board = BoardWatch(
            settings,
            prerequisites(settings),
            ResourcePublisher(advertised),
            [koordinator.Koordlet().report, UnusedLedgers().remove],
            find_conflict=lambda: self._gpu_lock.conflict(settings.device_plugin_dir),
            directories=mounted_directories,
            is_standby=lambda: registrars.yields,
        )
        registrars = Registrars(self._instance, settings.device_plugin_dir, advertised, self._counted)
        devices = self._devices = _device_watch(settings, advertised)
        disagreements = jtop_facts.DisagreementLog(lambda: board.detection)
        probe = jtop.JtopProbe(settings.host_root, note=disagreements.note)
        async with AsyncExitStack() as stack:
            if settings.metrics_address:
                from tegra_device_plugin.telemetry import httpd, plugin_pages  # noqa: PLC0415 - a start is mostly imports

                views = plugin_pages.Pages(
                    board,
                    registrars,
                    advertised,
                    probe.latest,
                    self._counted,
                    settings=lambda: self._settings,
                    devices=devices,
                ).by_path()
                await stack.enter_async_context(httpd.serving(*settings.metrics_address, views))
            # A relay for the standby instance would only take memory: the pod has the metrics.
            more = [] if self._instance.standby else [probe.run()]
            if devices:
                more.append(devices.run())
            await self._run_parts(board.run(), registrars.run(), self._follow_configuration(), *more)

    def _reject(self, error: ConfigError) -> None:
        self._counted.rejected_config_reloads += 1
        super()._reject(error)

    def _apply(self, before: PluginSettings) -> None:
        self._counted.config_reloads += 1
        now = self._settings
        if _needs_restart(now) != _needs_restart(before):
            self._restart(before)
            return
        unchanged = now == before
        logger.info("configuration read again%s", ": nothing has changed" if unchanged else "")
        if self._board:
            self._board.use(now, prerequisites(now))
        if self._devices and now.devices != before.devices:
            self._devices.use(now.devices)


def _needs_restart(settings: PluginSettings) -> tuple[object, ...]:
    """Give the settings that the parts read only at their start."""
    places = (settings.host_root, settings.device_plugin_dir, settings.metrics_address)
    return (*places, bool(settings.devices))


def _device_watch(settings: PluginSettings, advertised: AdvertisedResources) -> DeviceWatch | None:
    if not settings.devices:
        return None
    from tegra_device_plugin.devicewatch import DeviceWatch  # noqa: PLC0415 - most boards have none

    advertise = partial(advertised.advertise, source=DEVICES)
    return DeviceWatch(settings.host_root, settings.devices, advertise)


def prerequisites(settings: PluginSettings) -> Prerequisites:
    units = settings.units
    return Prerequisites(
        gpu=(cdi.SpecFile(settings.host_root, settings.cdi_version),)
        if "cdi-cri" in settings.device_list_strategy
        else (),
        memory=(
            MemoryTotal(units.memory_total),
            LimitFiles(settings.gpu_limit_dir, settings.gpu_limit_library),
        )
        if units
        else (),
    )


def mounted_directories(settings: PluginSettings) -> Iterator[Path]:
    """Give directories of the host that can be deleted under the container's mount."""
    kubelet = settings.device_plugin_dir.parent
    yield from (settings.device_plugin_dir, driver_conflict.dra_directory(kubelet), kubelet / "pod-resources")
    yield settings.gpu_limit_dir
    host = (cdi.DIRECTORY, cdi.RUNTIME_DIRECTORY, koordinator.DIRECTORY, jtop.DIRECTORY, POWER_MODE_DIRECTORY)
    yield from mounts.on_host(settings.host_root, *host)
