# SPDX-License-Identifier: Apache-2.0
"""The board's figures during a job: from samples to the least, the mean and the most, with units."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

# Unit of each group of figures (roles/gpu_job/files/companion.py), and the factor that makes it readable.
UNITS = {
    "temperature": ("°C", 1.0, 1),
    "clock": ("MHz", 1e-6, 0),
    "power": ("W", 1.0, 2),
    "throttling": ("", 1.0, 0),
    "memory": ("MiB", 1 / (1 << 20), 0),
    "gpu memory": ("MiB", 1 / (1 << 20), 0),
}
MOST_SERIES = 64
"""A board names its sensors itself."""
LONGEST_NAME = 60
Samples = list[dict[str, Any]]


class Figure(TypedDict):
    """One series, such as the temperature of a zone."""

    group: str
    name: str
    unit: str
    min: float
    mean: float
    max: float


def parse(text: str) -> Samples:
    """The samples in the companion's output. A line that is none is left out."""
    found: Samples = []
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def numbers(samples: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """The values of each series, by (group, name)."""
    series: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        for group in UNITS:
            values = sample.get(group)
            for name, value in values.items() if isinstance(values, Mapping) else ():
                usable = (
                    isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
                )
                key = (group, str(name)[:LONGEST_NAME])
                if usable and (key in series or len(series) < MOST_SERIES):
                    series.setdefault(key, []).append(float(value))
    return series


def figures(samples: Iterable[Mapping[str, Any]]) -> list[Figure]:
    """Least, mean and most of each series, in the units that people read."""
    found: list[Figure] = []
    for (group, name), values in numbers(samples).items():
        unit, factor, digits = UNITS[group]
        least, mean, most = min(values), sum(values) / len(values), max(values)
        scaled = [round(value * factor, digits) for value in (least, mean, most)]
        found.append(
            {
                "group": group,
                "name": name,
                "unit": unit,
                "min": scaled[0],
                "mean": scaled[1],
                "max": scaled[2],
            }
        )
    order = list(UNITS)
    return sorted(found, key=lambda one: order.index(one["group"]))


def throttled(samples: Iterable[Mapping[str, Any]]) -> list[str]:
    """What slowed the board down: counters that have grown, and cooling devices that were in use."""
    found = []
    for (group, name), values in numbers(samples).items():
        if group != "throttling":
            continue
        if name.endswith(" events"):
            grown = values[-1] - values[0]
            if grown > 0:
                found.append(f"over-current: {grown:.0f} {name}")
        elif max(values) > 0:
            found.append(
                f"cooling device {name} in {sum(value > 0 for value in values)} of {len(values)} samples"
            )
    return found


def line(figure: Figure) -> str:
    """A series for people."""
    unit = f" {figure['unit']}" if figure["unit"] else ""
    return (
        f"{figure['group']} {figure['name']}: {figure['min']:g} to {figure['max']:g}{unit}, "
        f"mean {figure['mean']:g}{unit}"
    )
