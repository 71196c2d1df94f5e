# SPDX-License-Identifier: Apache-2.0
"""Every metric, label and label's value that dashboard and alerts ask for is what a running plugin says."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import Settings
from tegra_device_plugin.kubelet.registrars import Registrars
from tegra_device_plugin.sharing.advertised import Advertised
from tegra_device_plugin.system.counters import Counters
from tegra_device_plugin.telemetry.jtop import JtopProbe, Telemetry
from tegra_device_plugin.telemetry.pages import Pages

from tests import boards
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, running
from tests.observability import promql
from tests.observability.promql import ADDED, Query

BOARD = "orinnano-jp6"
# What the pages say only while jtop's service runs.
OF_JTOP = {"tegra_gpu_memory_bytes", "tegra_memory_used_bytes", "tegra_power_mode"}

Said = Mapping[str, Mapping[str, set[str]]]
"""By metric the values of its labels."""


def read(said: dict[str, dict[str, set[str]]], page: str) -> None:
    """Add what a /metrics page says."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = said.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                labels[name].add(value)


async def of_a_process(said: dict[str, dict[str, set[str]]]) -> None:
    """Add what a plugin process says of a GPU that is well, and of one that has lost a device node."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as parent:
        root, directory = Path(parent, "host"), Path(parent, "device-plugins")
        boards.build(boards.load()[BOARD], root)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"

        def page() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        address_option = f"--metrics-address={address}"
        async with (
            FakeKubelet(directory) as kubelet,
            running(DEFAULT_COMMAND, root, directory, address_option),
        ):
            await kubelet.until_allocatable()
            read(said, await asyncio.to_thread(page))
            (root / "dev/nvmap").unlink()
            await kubelet.until_allocatable(0)
            read(said, await asyncio.to_thread(page))


async def of_jtop(said: dict[str, dict[str, set[str]]], root: Path) -> None:
    """Add what the page says when jtop runs. The telemetry is made up, the page is real."""
    boards.build(boards.load()[BOARD], root)
    advertised, counted, jtop = Advertised(), Counters(), JtopProbe(root)
    telemetry = Telemetry(gpu_memory_bytes=1, memory_used_bytes=2, power_mode="15W")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jtop, "latest", lambda: telemetry)
        board = BoardWatch(Settings(host_root=root), advertised)
        page = Pages(board, Registrars(root, advertised, counted), advertised, jtop, counted).metrics()
    only: dict[str, dict[str, set[str]]] = {}
    read(only, page.text)
    said |= {name: labels for name, labels in only.items() if name in OF_JTOP}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Everything that the plugin's metrics say."""

    async def collect() -> Said:
        found: dict[str, dict[str, set[str]]] = {}
        await of_a_process(found)
        assert not OF_JTOP & found.keys()
        await of_jtop(found, tmp_path_factory.mktemp("board") / "host")
        return found

    return asyncio.run(collect())


def missing(query: Query, said: Said) -> Iterator[str]:
    """What a query asks for and nobody says."""
    known: set[str] = set(ADDED)
    for metric, matchers in query.selectors():
        if metric not in said:
            yield metric
            continue
        known |= said[metric].keys()
        for label, operator, value in matchers:
            if label not in said[metric].keys() | ADDED:
                yield f"{metric}{{{label}}}"
            elif operator == "=" and label not in ADDED and value not in said[metric][label]:
                yield f"{metric}{{{label}={value!r}}}"
    yield from sorted(query.labels() - known)


@pytest.mark.parametrize(
    "query", [*promql.alerts(), *promql.dashboard()], ids=lambda query: f"{query.place}: {query.expression}"
)
def test_a_plugin_says_what_is_asked_for(query: Query, said: Said) -> None:
    assert list(missing(query, said)) == []


@pytest.mark.parametrize(
    "expression",
    [
        "tegra_gpu_loud_ratio > 1",
        'tegra_device_plugin_devices{state="healthy"}',
        'tegra_device_plugin_devices{health="ill"}',
        "sum by (board) (tegra_gpu_load_ratio)",
    ],
)
def test_what_nobody_says_is_noticed(expression: str, said: Said) -> None:
    assert len(list(missing(Query("here", expression), said))) == 1


def test_the_dashboard_shows_every_metric(said: Said) -> None:
    shown = {metric for query in promql.dashboard() for metric, _ in query.selectors()}
    assert shown == set(said)


def test_the_dashboards_panels_lie_side_by_side_and_ask_the_chosen_prometheus() -> None:
    panels = json.loads((promql.DIRECTORY / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {x for x, _ in cells} == set(range(24))  # the width of Grafana's grid
    assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {
        "${datasource}"
    }
