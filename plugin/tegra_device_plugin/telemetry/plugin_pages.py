# SPDX-License-Identifier: Apache-2.0
"""The pages /metrics, /healthz and /readyz of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources, Counters
from tegra_device_plugin.kubelet.registrar import Registrars
from tegra_device_plugin.sharing.allocation import Resource
from tegra_device_plugin.telemetry import httpd, jtop_facts
from tegra_device_plugin.telemetry.exposition import Metric, gauge, gauges, histogram, results
from tegra_device_plugin.telemetry.httpd import Page, StatusPages
from tegra_device_plugin.version import VERSION

if TYPE_CHECKING:
    from tegra_device_plugin.devicewatch import DeviceWatch
    from tegra_device_plugin.telemetry.jtop import Telemetry
    from tegra_device_plugin.telemetry.sensors import Sensors
    from tegra_device_plugin.telemetry.shares import Shares


class Pages(StatusPages):
    """The plugin's pages. With units, the kubelet is queried for their allocations."""

    def __init__(
        self,
        board: BoardWatch[PluginSettings],
        registrars: Registrars,
        advertised: AdvertisedResources,
        latest_telemetry: Callable[[], Telemetry | None],
        counted: Counters,
        *,
        settings: Callable[[], PluginSettings] = PluginSettings,
        devices: DeviceWatch | None = None,
    ) -> None:
        super().__init__()
        self._devices = devices
        self._board = board
        self._registrars = registrars
        self._advertised = advertised
        self._latest_telemetry = latest_telemetry
        self._counted = counted
        self._settings = settings
        self._shares: Shares | None = None
        self._sensors: Sensors | None = None

    def by_path(self) -> httpd.Pages:
        return {**super().by_path(), "/readyz": self.readyz}

    async def readyz(self) -> Page:
        """Fail while the node cannot have its GPU: no GPU on a Tegra, or no kubelet is connected."""
        detection = self._board.detection
        if detection is None:
            return Page("the board was not observed yet\n", HTTPStatus.SERVICE_UNAVAILABLE)
        if detection.board.platform == "none":
            return Page("not a Tegra: nothing to advertise\n")
        if self._board.conflict:
            return Page(f"{self._board.conflict}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        if not self._board.has_gpu:
            return Page("a Tegra without its GPU: see `detect`\n", HTTPStatus.SERVICE_UNAVAILABLE)
        if not self._registrars.connected:
            return Page("no kubelet is listening\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Page("ok\n")

    def _check_mounts(self) -> None:
        self._board.check_mounts()

    def _observed_at(self) -> Mapping[str, float]:
        devices = {"devices": self._devices.observed_at} if self._devices else {}
        return {
            "board": self._board.observed_at,
            "registration": self._registrars.observed_at,
            **devices,
        }

    async def _metrics(self) -> Iterable[Metric]:
        return [*self._plugin_metrics(), *await self._share_metrics(), *await self._sensor_metrics()]

    def _plugin_metrics(self) -> Iterable[Metric]:
        yield from _counters(self._counted)
        yield gauge("tegra_device_plugin_streams", self._registrars.streams)
        resources = self._advertised.resources.values()
        # Of their own, as queries of the first mean the GPU.
        for name, others in (("devices", False), ("other_devices", True)):
            yield gauges(
                f"tegra_device_plugin_{name}",
                (sample for one in resources if (one.own is not None) is others for sample in _devices(one)),
            )
        yield from self._gpu_metrics()
        if detection := self._board.detection:
            board, gpu = detection.board, detection.gpu
            yield gauge("tegra_memory_bytes", gpu.memory_bytes)
            facts = {
                "version": VERSION,
                "l4t": board.l4t,
                "jetpack": board.jetpack,
                "soc": board.soc,
                "chip": gpu.chip,
                "module": board.module,
            }
            known = {name: value for name, value in facts.items() if value}
            yield gauge("tegra_device_plugin_info", 1, **known)

    async def _share_metrics(self) -> Iterable[Metric]:
        """Give each container's share; none without units."""
        resources = self._advertised.resources
        limit = next((one.limit for one in resources.values() if one.limit), None)
        if limit is None:
            return ()
        if self._shares is None:
            from tegra_device_plugin.telemetry.shares import Shares  # noqa: PLC0415 - only with units

            self._shares = Shares(self._registrars.directory)
        return await self._shares.metrics(resources, limit, hami="hami" in self._settings().foreign_metrics)

    async def _sensor_metrics(self) -> Iterable[Metric]:
        """Give the board's power, heat, throttling and power mode; none unless configured."""
        settings = self._settings()
        if not settings.board_metrics:
            return ()
        if self._sensors is None:
            from tegra_device_plugin.telemetry.sensors import Sensors  # noqa: PLC0415 - only if configured

            self._sensors = Sensors(settings.host_root)
        return await self._sensors.metrics(*settings.foreign_metrics)

    def _gpu_metrics(self) -> Iterable[Metric]:
        """Give the values of sysfs and jtop."""
        if sample := self._board.sample:
            load = sample.load_percent
            yield gauge("tegra_gpu_load_ratio", None if load is None else load / 100)
            yield gauge("tegra_gpu_frequency_hertz", sample.frequency_hz)
            yield gauge("tegra_gpu_temperature_celsius", sample.temperature_celsius)
        if telemetry := self._latest_telemetry():
            yield gauge("tegra_gpu_memory_bytes", telemetry.gpu_memory_bytes)
            yield gauge("tegra_memory_used_bytes", telemetry.memory_used_bytes)
            if telemetry.power_mode:
                yield gauge("tegra_power_mode", 1, mode=telemetry.power_mode)
            if detection := self._board.detection:
                facts = jtop_facts.compare(detection, telemetry)
                yield gauges(
                    "tegra_jtop_disagreement",
                    (({"fact": fact.name}, not fact.agrees) for fact in facts if fact.agrees is not None),
                )


def _devices(resource: Resource) -> Iterator[tuple[Mapping[str, str], int]]:
    for (healthy, reason), count in resource.healths.items():
        health = "healthy" if healthy else "unhealthy"
        yield {"resource": resource.name, "health": health, "reason": reason}, count


def _counters(counted: Counters) -> Iterable[Metric]:
    yield results(
        "tegra_device_plugin_allocations_total",
        granted=counted.allocations,
        refused=counted.rejected_allocations,
    )
    yield histogram("tegra_device_plugin_allocate_duration_seconds", counted.allocate_durations)
    yield results(
        "tegra_device_plugin_registrations_total",
        accepted=counted.registrations,
        failed=counted.failed_registrations,
    )
    yield histogram("tegra_device_plugin_registration_duration_seconds", counted.registration_durations)
    yield results(
        "tegra_device_plugin_config_reloads_total",
        accepted=counted.config_reloads,
        refused=counted.rejected_config_reloads,
    )
