# SPDX-License-Identifier: Apache-2.0
"""The pages /metrics and /healthz of the throttle taint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tegra_device_plugin.telemetry.exposition import Metric, gauge, results
from tegra_device_plugin.telemetry.httpd import StatusPages
from tegra_device_plugin.throttling.node_taint import NodeTaint
from tegra_device_plugin.version import VERSION


class Pages(StatusPages):
    def __init__(self, taint: NodeTaint) -> None:
        super().__init__()
        self._taint = taint

    def _observed_at(self) -> Mapping[str, float]:
        return {"sensors": self._taint.observed_at}

    async def _metrics(self) -> Iterable[Metric]:
        writes = self._taint.writes
        return (
            gauge("tegra_throttle_taint_throttled", self._taint.throttled),
            gauge("tegra_throttle_taint_set", self._taint.is_set),
            results(
                "tegra_throttle_taint_writes_total",
                set=writes.set,
                removed=writes.removed,
                failed=writes.failures,
            ),
            gauge("tegra_throttle_taint_info", 1, version=VERSION),
        )
