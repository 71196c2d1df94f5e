# SPDX-License-Identifier: Apache-2.0
"""The pages /metrics, /healthz and /readyz of the DRA driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus

from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import DraSettings
from tegra_device_plugin.dra.driver_sockets import DriverRegistration
from tegra_device_plugin.dra.preparing import CallCounts, Preparer
from tegra_device_plugin.dra.slices import SlicePublisher, SliceWrites
from tegra_device_plugin.telemetry import httpd
from tegra_device_plugin.telemetry.exposition import (
    Metric,
    counters,
    gauge,
    histogram,
    histograms,
    results,
)
from tegra_device_plugin.telemetry.httpd import Page, StatusPages
from tegra_device_plugin.version import VERSION


class Pages(StatusPages):
    def __init__(
        self,
        board: BoardWatch[DraSettings],
        registration: DriverRegistration,
        publisher: SlicePublisher,
        preparer: Preparer,
        *,
        calls: CallCounts,
        writes: SliceWrites,
    ) -> None:
        super().__init__()
        self._board = board
        self._registration = registration
        self._publisher = publisher
        self._preparer = preparer
        self._calls = calls
        self._writes = writes

    def by_path(self) -> httpd.Pages:
        return {**super().by_path(), "/readyz": self.readyz}

    async def readyz(self) -> Page:
        """Fail while no claim can get the GPU of this node."""
        detection = self._board.detection
        if detection and detection.board.platform == "none":
            return Page("not a Tegra: nothing to publish\n")
        missing = []
        if not self._registration.registered:
            missing.append(f"not registered: {self._registration.not_ready_reason}")
        if not self._publisher.published:
            missing.append(f"no ResourceSlice: {self._publisher.not_ready_reason}")
        if missing:
            return Page("\n".join(missing) + "\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Page("ok\n")

    def _check_mounts(self) -> None:
        self._board.check_mounts()

    def _observed_at(self) -> Mapping[str, float]:
        return {"board": self._board.observed_at, "sockets": self._registration.observed_at}

    async def _metrics(self) -> Iterable[Metric]:
        return self._driver_metrics()

    def _driver_metrics(self) -> Iterator[Metric]:
        calls, writes = self._calls, self._writes
        by_call = (
            ({"call": "prepare"}, calls.prepare_durations),
            ({"call": "unprepare"}, calls.unprepare_durations),
        )
        yield gauge("tegra_dra_driver_resource_claims_in_use", self._preparer.in_use)
        yield results("tegra_dra_driver_prepares_total", prepared=calls.prepared, failed=calls.prepare_failed)
        yield results(
            "tegra_dra_driver_unprepares_total", unprepared=calls.unprepared, failed=calls.unprepare_failed
        )
        yield counters(
            "tegra_dra_driver_call_seconds_total",
            ((labels, durations.sum) for labels, durations in by_call),
        )
        yield histograms("tegra_dra_driver_call_duration_seconds", by_call)
        yield results(
            "tegra_dra_driver_registrations_total",
            accepted=self._registration.registrations,
            failed=self._registration.failed_registrations,
        )
        yield histogram(
            "tegra_dra_driver_registration_duration_seconds", self._registration.registration_durations
        )
        yield results(
            "tegra_dra_driver_slice_writes_total",
            created=writes.created,
            updated=writes.updated,
            deleted=writes.deleted,
            failed=writes.failures,
        )
        yield gauge("tegra_dra_driver_published", self._publisher.published)
        yield gauge("tegra_dra_driver_registered", self._registration.registered)
        if gpu_health := self._board.health:
            yield gauge("tegra_dra_driver_gpu_healthy", gpu_health.healthy, reason=gpu_health.reason)
        if found := self._board.detection:
            soc = {"soc": found.board.soc} if found.board.soc else {}
            yield gauge("tegra_dra_driver_info", 1, version=VERSION, **soc)
