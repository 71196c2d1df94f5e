# SPDX-License-Identifier: Apache-2.0
"""Whether the board is throttled, by its cooling devices and its counters of over-current events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.telemetry import sensors


class Reading(NamedTuple):
    cooling: Mapping[str, float]
    """State of each cooling device that slows the board down, by number and type; 0 is not at all."""
    overcurrent: Mapping[str, float]
    """Events since the board's start, by alarm."""


def read(host: HostTree) -> Reading:
    """Read the sensors. Raises OSError for a shortage of descriptors or memory."""
    return Reading(
        {
            f"cooling_device{number} ({kind})": state
            for number, kind, state in sensors.cooling(host)
            if sensors.slows_down(kind)
        },
        dict(sensors.overcurrent(host)),
    )


def reasons(reading: Reading, before: Reading | None) -> list[str]:
    """Say why the board is throttled; empty if it is not. Over-current counts after the first reading."""
    counted = before.overcurrent if before else reading.overcurrent
    hot = [f"{name} is at state {state:.0f}" for name, state in reading.cooling.items() if state > 0]
    current = [
        f"over-current {alarm}: {events - counted[alarm]:.0f} events"
        for alarm, events in reading.overcurrent.items()
        if events > counted.get(alarm, events)
    ]
    return [*hot, *current]
