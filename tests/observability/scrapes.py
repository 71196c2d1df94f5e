# SPDX-License-Identifier: Apache-2.0
"""Pages of /metrics: of plugin, node agent and DRA driver, on simulated boards."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tegra_device_plugin.agent import agent_pages
from tegra_device_plugin.agent.guard import Guard
from tegra_device_plugin.agent.memory import MemoryUse
from tegra_device_plugin.agent.pods import Pods, UnitResources
from tegra_device_plugin.agent.unused import Gpu, Unused
from tegra_device_plugin.agent.weights import Weights
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.boardwatch import BoardWatch, Prerequisites
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources, Counters
from tegra_device_plugin.kubelet.registrar import Registrars
from tegra_device_plugin.kubelet.sockets import Instance
from tegra_device_plugin.plugin import ResourcePublisher
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.telemetry.jtop import Telemetry
from tegra_device_plugin.telemetry.plugin_pages import Pages
from tegra_device_plugin.throttling import taint_pages
from tegra_device_plugin.throttling.node_taint import NodeTaint

from tests import boards
from tests.boards import sensors
from tests.conformance.dra_node import DraNode
from tests.conformance.fake_api import FakeApi
from tests.conformance.fake_dra_kubelet import FakeDraKubelet
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, Node, free_address, page, running
from tests.conformance.pod_resources import pod_resources, running_kubelet
from tests.unit.plugin.agent.node import CORE, MEMORY, Pod
from tests.unit.plugin.agent.node import Node as AgentNode
from tests.unit.plugin.agent.nvgpu import SimulatedNvgpu

BOARD = "orinnano-jp6"
EVERY_FOREIGN = ("dcgm", "gpu-fractioning", "hami", "kepler", "node-exporter")
DEVICES = "devices: [{name: can, groups: [{paths: [{path: /sys/class/net/can0, type: Interface}]}]}]"
UNITS = "units: {memoryTotal: 1Gi, memoryUnit: 8Mi}"
"""128 units of memory beside 100 of time."""


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


async def of_a_process(root: Path) -> list[str]:
    """Return the plugin's page while the GPU is healthy, and after that."""
    async with a_kubelet() as kubelet, a_process(kubelet, root) as address:
        await kubelet.until_allocatable()
        healthy = await asyncio.to_thread(page, address)
        (root / "dev/nvmap").unlink()
        await kubelet.until_allocatable(0)
        return [healthy, await asyncio.to_thread(page, address)]


async def of_sensors(root: Path, *more: str) -> str:
    """Return the plugin's page with the board's own metrics."""
    sensors.add(root)
    async with a_kubelet() as kubelet, a_process(kubelet, root, "--board-metrics=true", *more) as address:
        await kubelet.until_allocatable()
        return await asyncio.to_thread(page, address)


async def of_devices(root: Path) -> list[str]:
    """Return the plugin's page while a device beside the GPU is there, and after that."""
    can, config = root / "host/sys/class/net/can0", root / "config.yaml"
    config.write_text(DEVICES)
    async with a_kubelet() as kubelet, a_process(kubelet, root / "host", f"--config={config}") as address:
        can.mkdir(parents=True)
        await kubelet.until_allocatable(2)
        there = await asyncio.to_thread(page, address)
        can.rmdir()
        await kubelet.until_allocatable(1)
        return [there, await asyncio.to_thread(page, address)]


async def of_units(root: Path, containers: int = 1, foreign: Sequence[str] = ()) -> str:
    """Return the plugin's page while that many containers have a share."""
    node = Node(root)
    node.share(UNITS)
    more = [f"--foreign-metrics={','.join(foreign)}"] if foreign else []
    async with (
        a_kubelet() as kubelet,
        pod_resources(kubelet) as pods,
        a_process(kubelet, root / "host", *node.arguments, *more) as address,
    ):
        await kubelet.until_allocatable(228)
        for number in range(containers):
            await pods.admits(("n", f"p{number}", "c"), {CORE: 1, MEMORY: 1} if number < 100 else {MEMORY: 1})
        return await asyncio.to_thread(page, address)


@contextmanager
def node_of_agent(root: Path) -> Iterator[AgentNode]:
    with running_kubelet() as kubelet:
        yield AgentNode(root, kubelet)


async def of_agent(root: Path, pods: int = 1, contexts: int = 1, foreign: Sequence[str] = ()) -> str:
    """Return the agent's page; each pod has one process with that many GPU contexts.

    Each is reported as without use: it is so for 0 seconds.
    """
    driver = SimulatedNvgpu()
    with node_of_agent(root) as node:
        for number in range(1, pods + 1):
            node.admits(Pod(number, f"vision-{number}", percent=30))
            node.process(number, number)
            for context in range(contexts):
                driver.runs(number * contexts + context, number)
        node.use_memory(**{f"p{number}": 100 for number in range(1, pods + 1)})
        host = HostTree(root)
        known = Pods(node.kubelet.socket, host, UnitResources(CORE, MEMORY, lambda ids: ids))
        guard = Guard(MemoryUse(root), host, known, "report", 0)
        weights = Weights(host, known, driver)
        gpu = Gpu({CORE, MEMORY}, MEMORY, root / "limits")
        unused = Unused(guard, host, known, gpu, 0)
        await weights.observe()
        await guard.observe()
        await unused.observe()
        return (await agent_pages.Pages(known, guard, weights, list, foreign, unused=unused).metrics()).text


async def of_jtop(root: Path) -> str:
    """Return the plugin's page when jtop runs. The telemetry is made up, the page is real."""
    boards.build(boards.load()[BOARD], root)
    advertised, counted = AdvertisedResources(), Counters()
    telemetry = Telemetry(gpu_memory_bytes=1, memory_used_bytes=2, power_mode="15W", l4t="1.0", gpu="gpu")
    board = BoardWatch(PluginSettings(host_root=root), Prerequisites(), ResourcePublisher(advertised))
    board.detection = detect(root)
    registrars = Registrars(Instance(), root, advertised, counted)
    return (await Pages(board, registrars, advertised, lambda: telemetry, counted).metrics()).text


async def of_throttle_taint(root: Path) -> str:
    """Return the page of the throttle taint after an answer of the API server."""
    taint = NodeTaint(root, 600)
    taint.is_set = True
    return (await taint_pages.Pages(taint).metrics()).text


async def of_driver() -> str:
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as place:
        async with FakeApi() as api, FakeDraKubelet(Path(place, "kubelet")) as kubelet:
            node = DraNode(Path(place), api, kubelet)
            address = free_address()
            async with node.start(f"--metrics-address={address}"):
                await node.ready()
                return await asyncio.to_thread(page, address)
