# SPDX-License-Identifier: Apache-2.0
"""Every metric, label and label's value that dashboard and alerts ask for is what a running process says."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observability import promql, scrapes
from tests.observability.promql import ADDED, OF_JTOP, OF_SENSORS, OF_UNITS, Query

Exposed = Mapping[str, Mapping[str, set[str]]]
"""By metric the values of its labels."""


def read(exposed: dict[str, dict[str, set[str]]], page: str) -> None:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = exposed.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                labels[name].add(value)


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Exposed:
    async def collect() -> Exposed:
        found: dict[str, dict[str, set[str]]] = {}
        for page in await scrapes.of_a_process(tmp_path_factory.mktemp("board") / "host"):
            read(found, page)
        assert not (OF_JTOP | OF_UNITS | OF_SENSORS) & found.keys()
        read(found, await scrapes.of_sensors(tmp_path_factory.mktemp("board") / "host"))
        assert found.keys() >= OF_SENSORS
        for page in await scrapes.of_devices(tmp_path_factory.mktemp("board")):
            read(found, page)
        only: dict[str, dict[str, set[str]]] = {}
        read(only, await scrapes.of_jtop(tmp_path_factory.mktemp("board") / "host"))
        found |= {name: labels for name, labels in only.items() if name in OF_JTOP}
        read(found, await scrapes.of_units(tmp_path_factory.mktemp("node")))
        read(found, await scrapes.of_agent(tmp_path_factory.mktemp("board") / "host"))
        read(found, await scrapes.of_driver())
        read(found, await scrapes.of_throttle_taint(tmp_path_factory.mktemp("board")))
        return found

    return asyncio.run(collect())


def missing(query: Query, exposed: Exposed) -> Iterator[str]:
    known: set[str] = set(ADDED)
    for metric, matchers in query.selectors():
        if metric not in exposed:
            yield metric
            continue
        known |= exposed[metric].keys()
        for label, operator, value in matchers:
            if label not in exposed[metric].keys() | ADDED:
                yield f"{metric}{{{label}}}"
            elif operator == "=" and label not in ADDED and value not in exposed[metric][label]:
                yield f"{metric}{{{label}={value!r}}}"
    yield from sorted(query.labels() - known)


@pytest.mark.parametrize(
    "query", [*promql.alerts(), *promql.dashboard()], ids=lambda query: f"{query.place}: {query.expression}"
)
def test_plugin_agent_and_driver_say_what_is_asked_for(query: Query, exposed: Exposed) -> None:
    assert list(missing(query, exposed)) == []


def family(name: str) -> str:
    """The metric of a sample, which for a histogram has another name."""
    return re.sub(r"_duration_seconds_(bucket|sum|count)$", "_duration_seconds", name)


def test_the_dashboard_shows_every_metric_of_plugin_and_driver(exposed: Exposed) -> None:
    shown = {family(metric) for query in promql.dashboard() for metric, _ in query.selectors()}
    there = set(map(family, exposed))
    optional = {name for name in there if name.startswith(("tegra_gpu_agent_", "tegra_throttle_taint_"))}
    assert shown - optional == there - optional


def test_names_of_other_exporters_are_there_only_if_asked_for(exposed: Exposed) -> None:
    assert {name for name in exposed if not name.startswith(("tegra_", "process_"))} == set()


FOREIGN = {
    "dcgm": {"DCGM_FI_DEV_FB_USED"},
    "gpu-fractioning": {"gpu_fractioning_gpu_memory_used_bytes"},
    "hami": {"vGPU_device_memory_limit_in_bytes", "vGPU_device_memory_usage_in_bytes"},
}


@pytest.mark.parametrize("chosen", FOREIGN)
async def test_names_of_another_exporter_are_beside_the_projects_own(
    chosen: str, exposed: Exposed, tmp_path: Path
) -> None:
    found: dict[str, dict[str, set[str]]] = {}
    read(found, await scrapes.of_units(tmp_path, foreign=[chosen]))
    read(found, await scrapes.of_agent(tmp_path / "board", foreign=[chosen]))
    assert found.keys() - exposed.keys() == FOREIGN[chosen]
    assert {"tegra_device_plugin_memory_used_bytes", "tegra_gpu_agent_memory_used_bytes"} <= found.keys()


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("node-exporter", {"node_thermal_zone_temp", "node_cooling_device_cur_state"}),
        ("kepler", {"kepler_node_cpu_watts"}),
    ],
)
async def test_sensors_under_names_of_another_exporter_are_beside_the_projects_own(
    chosen: str, names: set[str], exposed: Exposed, tmp_path: Path
) -> None:
    found: dict[str, dict[str, set[str]]] = {}
    read(found, await scrapes.of_sensors(tmp_path, f"--foreign-metrics={chosen}"))
    assert found.keys() - exposed.keys() == names
    assert found.keys() >= OF_SENSORS


def counts(page: str) -> dict[str, float]:
    families = text_string_to_metric_families(page)
    return {
        one.name: one.value for family in families for one in family.samples if one.name.endswith("_count")
    }


async def test_each_call_of_the_kubelet_is_in_a_histogram(tmp_path: Path) -> None:
    plugin = counts(await scrapes.of_units(tmp_path, containers=2))
    assert plugin == {
        "tegra_device_plugin_allocate_duration_seconds_count": 4,  # a call for each container and resource
        "tegra_device_plugin_registration_duration_seconds_count": 2,
    }
    driver = counts(await scrapes.of_driver())
    assert driver["tegra_dra_driver_registration_duration_seconds_count"] == 1


def test_the_dashboards_panels_ask_the_chosen_prometheus() -> None:
    panels = json.loads((promql.FILES / "dashboard.json").read_text())["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert not any("datasource" in target for panel in panels for target in panel["targets"])
