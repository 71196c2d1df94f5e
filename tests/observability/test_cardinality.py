# SPDX-License-Identifier: Apache-2.0
"""A page has a bounded number of series: it grows with the containers that run, and with nothing else."""

import re
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.telemetry import sensors
from tegra_device_plugin.telemetry.exposition import exposition

from tests.docs import CHECKOUT
from tests.observability import scrapes

PODS_OF_A_KUBELET = 110


def series(page: str) -> Counter[str]:
    """How many series each metric has; Prometheus would refuse a page with one of them twice."""
    found = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
    assert len(set(found)) == len(found)
    return Counter(name for name, _ in found)


def documented(component: str) -> tuple[int, int]:
    """The limits of docs/monitoring.md: series of the component, and of each container or pod."""
    page = (CHECKOUT / "docs/monitoring.md").read_text()
    (found,) = re.findall(rf"^\| {component} \| (\d+) \| (\d+) [^|]+\|$", page, re.MULTILINE)
    return int(found[0]), int(found[1])


@pytest.mark.parametrize("containers", [1, PODS_OF_A_KUBELET])
async def test_each_container_with_a_share_adds_a_fixed_number_of_series(
    containers: int, tmp_path: Path
) -> None:
    fixed, each = documented("device plugin")
    roots = tmp_path / "empty", tmp_path / "full"
    for root in roots:
        root.mkdir()
    empty = series(await scrapes.of_units(roots[0], 0, scrapes.EVERY_FOREIGN))
    found = series(await scrapes.of_units(roots[1], containers, scrapes.EVERY_FOREIGN))
    assert empty.total() <= fixed
    assert found.total() - empty.total() <= each * containers
    assert max((found - empty).values()) <= 2 * containers  # by container and resource


@pytest.mark.parametrize("pods", [1, PODS_OF_A_KUBELET])
async def test_gpu_contexts_add_no_series(pods: int, tmp_path: Path) -> None:
    fixed, each = documented("node agent")
    one = series(await scrapes.of_agent(tmp_path / "one", pods, 1, scrapes.EVERY_FOREIGN))
    many = series(await scrapes.of_agent(tmp_path / "many", pods, 4, scrapes.EVERY_FOREIGN))
    assert one == many
    assert one["tegra_gpu_agent_timeslice_seconds"] == pods
    assert one.total() <= fixed + each * pods


async def test_the_driver_has_no_series_of_pods() -> None:
    fixed, each = documented("DRA driver")
    assert (series(await scrapes.of_driver()).total() <= fixed, each) == (True, 0)


async def test_the_throttle_taint_has_no_series_of_pods(tmp_path: Path) -> None:
    fixed, each = documented("throttle taint")
    assert (series(await scrapes.of_throttle_taint(tmp_path)).total() <= fixed, each) == (True, 0)


def test_sensors_of_a_board_have_a_bounded_number_of_series(tmp_path: Path) -> None:
    fixed, each = documented("`boardMetrics`")
    for number in range(100):
        zone, device = (
            tmp_path / f"sys/class/thermal/{kind}{number}" for kind in ("thermal_zone", "cooling_device")
        )
        for place, values in ((zone, {"temp": "40000"}), (device, {"cur_state": "0"})):
            place.mkdir(parents=True)
            for name, value in (values | {"type": f"cpu-{number}"}).items():
                (place / name).write_text(value)
    found = series(exposition(sensors.read(HostTree(tmp_path))))
    names = ("tegra_temperature_celsius", "tegra_cooling_state", *sensors.NODE_EXPORTER)
    assert found == dict.fromkeys(names, sensors.MOST_SERIES)
    # Beside these: power under two names, over-current events, and the power mode.
    assert (fixed, each) == (7 * sensors.MOST_SERIES + 1, 0)


async def test_a_failing_gpu_adds_no_series(tmp_path: Path) -> None:
    healthy, failing = map(series, await scrapes.of_a_process(tmp_path / "host"))
    assert healthy == failing
