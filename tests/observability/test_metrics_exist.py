# SPDX-License-Identifier: Apache-2.0
"""Every metric, label and label's value that dashboard and alerts ask for is what a running process says."""

import asyncio
import json
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tegra_device_plugin.agent import agent_pages
from tegra_device_plugin.agent.guard import Guard
from tegra_device_plugin.agent.memory import MemoryUse
from tegra_device_plugin.agent.pods import Pods, UnitResources
from tegra_device_plugin.boardwatch import BoardWatch, Prerequisites
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources, Counters
from tegra_device_plugin.kubelet.registrar import Registrars
from tegra_device_plugin.kubelet.sockets import Instance
from tegra_device_plugin.plugin import ResourcePublisher
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.telemetry.jtop import Telemetry
from tegra_device_plugin.telemetry.plugin_pages import Pages

from tests import boards
from tests.conformance.dra_node import DraNode
from tests.conformance.fake_api import FakeApi
from tests.conformance.fake_dra_kubelet import FakeDraKubelet
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, Node, free_address, page, running
from tests.conformance.pod_resources import pod_resources, running_kubelet
from tests.observability import promql
from tests.observability.promql import ADDED, OF_JTOP, OF_UNITS, Query
from tests.unit.plugin.agent.node import CORE, MEMORY, Pod
from tests.unit.plugin.agent.node import Node as AgentNode

BOARD = "orinnano-jp6"

Exposed = Mapping[str, Mapping[str, set[str]]]
"""By metric the values of its labels."""


def read(exposed: dict[str, dict[str, set[str]]], page: str) -> None:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = exposed.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                labels[name].add(value)


@asynccontextmanager
async def a_process(kubelet: FakeKubelet, root: Path, *more: str) -> AsyncIterator[str]:
    boards.build(boards.load()[BOARD], root)
    address = free_address()
    async with running(DEFAULT_COMMAND, root, kubelet.directory, f"--metrics-address={address}", *more):
        yield address


@asynccontextmanager
async def a_kubelet() -> AsyncIterator[FakeKubelet]:
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as parent:
        async with FakeKubelet(Path(parent, "device-plugins")) as kubelet:
            yield kubelet


async def of_a_process(exposed: dict[str, dict[str, set[str]]], root: Path) -> None:
    async with a_kubelet() as kubelet, a_process(kubelet, root) as address:
        await kubelet.until_allocatable()
        read(exposed, await asyncio.to_thread(page, address))
        (root / "dev/nvmap").unlink()
        await kubelet.until_allocatable(0)
        read(exposed, await asyncio.to_thread(page, address))


async def of_units(exposed: dict[str, dict[str, set[str]]], root: Path) -> None:
    node = Node(root)
    node.share("units: {memoryTotal: 1Gi}")
    async with (
        a_kubelet() as kubelet,
        pod_resources(kubelet) as pods,
        a_process(kubelet, root / "host", *node.arguments) as address,
    ):
        await kubelet.until_allocatable(104)
        limits = {"jetson-k3s.github.io/gpu-core": 5, "jetson-k3s.github.io/gpu-memory": 1}
        await pods.admits(("n", "p", "c"), limits)
        read(exposed, await asyncio.to_thread(page, address))


async def of_agent(exposed: dict[str, dict[str, set[str]]], root: Path) -> None:
    with running_kubelet() as kubelet:
        node = AgentNode(root, kubelet)
        node.admits(Pod(1, "vision", percent=30))
        node.process(10, 1)
        node.use_memory(p10=100)
        host = HostTree(root)
        pods = Pods(kubelet.socket, host, UnitResources(CORE, MEMORY, lambda ids: ids))
        guard = Guard(MemoryUse(root), host, pods, "report", 0)
        await guard.observe()
        read(exposed, (await agent_pages.Pages(pods, guard, None, list).metrics()).text)


async def of_jtop(exposed: dict[str, dict[str, set[str]]], root: Path) -> None:
    """Add what the page says when jtop runs. The telemetry is made up, the page is real."""
    boards.build(boards.load()[BOARD], root)
    advertised, counted = AdvertisedResources(), Counters()
    telemetry = Telemetry(gpu_memory_bytes=1, memory_used_bytes=2, power_mode="15W")
    board = BoardWatch(PluginSettings(host_root=root), Prerequisites(), ResourcePublisher(advertised))
    registrars = Registrars(Instance(), root, advertised, counted)
    page = await Pages(board, registrars, advertised, lambda: telemetry, counted).metrics()
    only: dict[str, dict[str, set[str]]] = {}
    read(only, page.text)
    exposed |= {name: labels for name, labels in only.items() if name in OF_JTOP}


async def of_driver(exposed: dict[str, dict[str, set[str]]]) -> None:
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as place:
        async with FakeApi() as api, FakeDraKubelet(Path(place, "kubelet")) as kubelet:
            node = DraNode(Path(place), api, kubelet)
            address = free_address()
            async with node.start(f"--metrics-address={address}"):
                await node.ready()
                read(exposed, await asyncio.to_thread(page, address))


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Exposed:
    async def collect() -> Exposed:
        found: dict[str, dict[str, set[str]]] = {}
        await of_a_process(found, tmp_path_factory.mktemp("board") / "host")
        assert not (OF_JTOP | OF_UNITS) & found.keys()
        await of_jtop(found, tmp_path_factory.mktemp("board") / "host")
        await of_units(found, tmp_path_factory.mktemp("node"))
        await of_agent(found, tmp_path_factory.mktemp("board") / "host")
        await of_driver(found)
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


def test_the_dashboard_shows_every_metric_of_plugin_and_driver(exposed: Exposed) -> None:
    shown = {metric for query in promql.dashboard() for metric, _ in query.selectors()}
    of_agent = {
        name for name in exposed if name.startswith(("tegra_gpu_agent_", "gpu_fractioning_", "DCGM_"))
    }
    assert shown - of_agent == exposed.keys() - of_agent


def test_the_dashboards_panels_ask_the_chosen_prometheus() -> None:
    panels = json.loads((promql.FILES / "dashboard.json").read_text())["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert not any("datasource" in target for panel in panels for target in panel["targets"])
