# SPDX-License-Identifier: Apache-2.0
"""The board's power, heat, throttling and power mode, from its files. Only imported with `boardMetrics`.

Power is measured by an INA3221, or on Thor by an INA238. They are hwmon devices, with L4T's kernel 4.9 IIO
devices. A read takes the bus to the sensor, so the values are kept for FRESH_SECONDS.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tegra_device_plugin.board import detection
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls
from tegra_device_plugin.telemetry.exposition import Metric, counters, gauge, gauges

FRESH_SECONDS = 5.0
DEADLINE_SECONDS = 3.0
# A board names its sensors itself. Orin has 12 zones, 4 rails and 12 cooling devices.
MOST_SERIES = 32
LONGEST_NAME = 60
# Names and labels of its collector `thermal_zone`.
NODE_EXPORTER = ("node_thermal_zone_temp", "node_cooling_device_cur_state")
# Name and labels of Kepler's power meter for hwmon, which has all rails of a board as zones of the CPU
# (kepler internal/device/hwmon_power_meter.go, pull request 2385). Its counters of energy have no counterpart
# here: they need a read every few seconds, and these sensors are only read for the page.
KEPLER = ("kepler_node_cpu_watts",)
FOREIGN = {"node-exporter": NODE_EXPORTER, "kepler": KEPLER}

_HWMON, _THERMAL = "/sys/class/hwmon", "/sys/class/thermal"
_IIO = "/sys/bus/i2c/drivers/ina3221x/*/iio:device*"
_POWER_CHIPS = ("ina3221", "ina238")
_NOT_CONNECTED = ("", "NC")
# m°C of a zone whose power domain is off (R35; later kernels fail the read).
_OFFLINE = -256000
_SLOWER = re.compile(r"(?!.*fan).*(cpu|devfreq|gpu|throttl)", re.IGNORECASE)
_NOT_IN_ZONE = re.compile("[^a-z0-9:_]")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_MILLI = 1e-3
_MICRO = 1e-6


def power(host: HostTree) -> Iterator[tuple[str, str, float]]:
    """Give (rail, the file that names it, watts)."""
    for monitor in host.glob(f"{_HWMON}/hwmon*"):
        if host.text(f"{monitor}/name") not in _POWER_CHIPS:
            continue
        for label in host.glob(f"{monitor}/in*_label"):
            rail = host.text(label) or ""
            channel = label.rpartition("/in")[2].removesuffix("_label")
            watts = _of_channel(host, monitor, channel)
            if watts is not None and rail not in _NOT_CONNECTED:
                yield rail, label, watts
    for device in host.glob(_IIO):
        for name in host.glob(f"{device}/rail_name_*"):
            milliwatts = _number(host, f"{device}/in_power{name.rpartition('_')[2]}_input")
            rail = host.text(name) or ""
            if milliwatts is not None and rail not in _NOT_CONNECTED:
                yield rail, name, milliwatts * _MILLI


def _of_channel(host: HostTree, monitor: str, channel: str) -> float | None:
    """Give the watts of a channel: as the chip measures them, else voltage times current."""
    microwatts = _number(host, f"{monitor}/power{channel}_input")
    if microwatts is not None:
        return microwatts * _MICRO
    millivolts = _number(host, f"{monitor}/in{channel}_input")
    milliamperes = _number(host, f"{monitor}/curr{channel}_input")
    return None if millivolts is None or milliamperes is None else millivolts * milliamperes * _MICRO


def temperatures(host: HostTree) -> Iterator[tuple[str, str, float]]:
    """Give (number, type, degrees Celsius) of each zone that is on. The GPU's may be off."""
    for zone in host.glob(f"{_THERMAL}/thermal_zone*"):
        value = _number(host, f"{zone}/temp")
        if value is not None and value != _OFFLINE:
            number = zone.rpartition("thermal_zone")[2]
            yield number, host.text(f"{zone}/type") or number, value * _MILLI


def cooling(host: HostTree) -> Iterator[tuple[str, str, float]]:
    """Give (number, type, state) of each cooling device; 0 is not at all."""
    for device in host.glob(f"{_THERMAL}/cooling_device*"):
        kind, state = host.text(f"{device}/type") or "", _number(host, f"{device}/cur_state")
        if state is not None:
            yield device.rpartition("cooling_device")[2], kind, state


def slows_down(kind: str) -> bool:
    """True for the type of a cooling device that slows the board down. A fan does not."""
    return _SLOWER.match(kind) is not None


def overcurrent(host: HostTree) -> Iterator[tuple[str, float]]:
    """Give (alarm, events since the board's start) of the SoC's over-current throttling."""
    for counter in host.glob(f"{_HWMON}/hwmon*/oc*_event_cnt"):
        value = _number(host, counter)
        if value is not None:
            yield counter.rpartition("/")[2].removesuffix("_event_cnt"), value


def read(host: HostTree) -> tuple[Metric, ...]:
    """Read all sensors. A sensor that refuses has no sample."""
    rails = [*islice(power(host), MOST_SERIES)]
    zones = [*islice(temperatures(host), MOST_SERIES)]
    devices = [*islice(cooling(host), MOST_SERIES)]
    slower = ((kind, state) for _, kind, state in devices if slows_down(kind))
    return (
        gauges("tegra_power_watts", _samples("rail", ((rail, watts) for rail, _, watts in rails))),
        gauge("tegra_power_mode_number", detection.power_mode(host)),
        gauges("tegra_temperature_celsius", _samples("zone", (zone[1:] for zone in zones))),
        gauges("tegra_cooling_state", _samples("device", slower)),
        counters("tegra_overcurrent_events_total", _samples("alarm", overcurrent(host))),
        gauges(
            "node_thermal_zone_temp",
            (({"zone": number, "type": kind[:LONGEST_NAME]}, value) for number, kind, value in zones),
        ),
        gauges(
            "node_cooling_device_cur_state",
            (({"name": number, "type": kind[:LONGEST_NAME]}, value) for number, kind, value in devices),
        ),
        gauges(
            "kepler_node_cpu_watts",
            (({"zone": _zone(rail), "path": path}, watts) for rail, path, watts in rails),
        ),
    )


class Sensors:
    """The metrics of the last read; a request of the page reads again."""

    def __init__(self, root: Path) -> None:
        self._host = HostTree(root)
        self._lock = asyncio.Lock()
        self._blocking = BlockingCalls(DEADLINE_SECONDS)
        self._read_at: float | None = None
        self._metrics: tuple[Metric, ...] = ()
        self._problem_log = ProblemLog()

    async def metrics(self, *foreign: str) -> tuple[Metric, ...]:
        """Give the metrics; none while a sensor hangs. `foreign`: exporters whose names some also have."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._read_at is None or now - self._read_at >= FRESH_SECONDS:
                self._read_at = now
                try:
                    self._metrics = await self._blocking.run(lambda: read(self._host))
                except (OSError, TimeoutError) as error:
                    reason = describe_error(error, "a sensor hangs")
                    self._problem_log.warn(f"no metrics of the board's sensors: {reason}")
                    self._metrics = ()
                else:
                    self._problem_log.resolved("there are metrics of the board's sensors again")
            chosen = [name for exporter in foreign for name in FOREIGN.get(exporter, ())]
            others = [name for names in FOREIGN.values() for name in names if name not in chosen]
            return tuple(one for one in self._metrics if one.name not in others)


def _samples(label: str, values: Iterable[tuple[str, float]]) -> Iterator[tuple[dict[str, str], float]]:
    """Give samples with names of their own: a page with a series twice is refused."""
    seen: dict[str, int] = {}
    for name, value in islice(values, MOST_SERIES):
        short = name[:LONGEST_NAME]
        seen[short] = seen.get(short, 0) + 1
        yield {label: short if seen[short] == 1 else f"{short} {seen[short]}"}, value


def _zone(rail: str) -> str:
    """Give Kepler's name of a rail (cleanMetricName)."""
    return _NOT_IN_ZONE.sub("_", rail[:LONGEST_NAME].lower()).strip("_")


def _number(host: HostTree, path: str) -> float | None:
    text = host.text(path) or ""
    return float(text) if _NUMBER.fullmatch(text) else None
