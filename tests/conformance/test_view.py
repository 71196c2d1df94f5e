# SPDX-License-Identifier: Apache-2.0
"""Who has which share: by the command and by the metrics, against the kubelet's own account."""

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.conftest import Start
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import Node, free_address, page
from tests.conformance.pod_resources import PodResources, pod_resources
from tests.ledgers import MIB, used_by

CORE, MEMORY = "jetson-k3s.github.io/gpu-core", "jetson-k3s.github.io/gpu-memory"

pytestmark = pytest.mark.parametrize("generation", ["1.37"])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that advertises 6 GiB in units of 256 MiB; a process is charged 10 MiB for its context."""
    found = Node(tmp_path)
    found.share("units: {memoryTotal: 6Gi, contextOverhead: 10Mi}")
    return found


async def allocations(pods: PodResources, node: Node) -> dict[str, Any]:
    command = [sys.executable, "-m", "tegra_device_plugin", "allocations", "--output=json"]
    process = await asyncio.create_subprocess_exec(
        *command, f"--config={node.config}", f"--pod-resources={pods.socket}",
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "GPU_LIMIT_DIR": str(node.limit)},
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(printed)
    return found


async def metrics(address: str) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(page, address)):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            assert labels not in found.get(sample.name, {})  # Prometheus would refuse the page
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_rows_add_up_to_allocatable_less_free(kubelet: FakeKubelet, start: Start, node: Node) -> None:
    address = free_address()
    serving = (f"--metrics-address={address}", "--foreign-metrics=hami")
    async with pod_resources(kubelet) as pods, start(*node.arguments, *serving):
        await kubelet.until(lambda: kubelet.allocatable() == 124, "units")
        pods.numa_nodes = 2
        for name, core, memory in (
            (("a", "train", "main"), 30, 4),
            (("a", "train", "side"), 0, 3),
            (("b", "train", "main"), 5, 0),
            (("b", "serve", "main"), 1, 12),
        ):
            await pods.admits(name, {one: n for one, n in ((CORE, core), (MEMORY, memory)) if n})
        with used_by(node.limit / "ledgers/m4", 100 * MIB, 20 * MIB):
            printed, shown = await allocations(pods, node), await metrics(address)
        rows: Counter[str] = Counter()
        for row in printed["containers"]:
            for one in row["held"]:
                rows[one["resource"]] += one["count"]
        for resource in (CORE, MEMORY):
            allocatable, free = kubelet.allocatable(resource), len(pods.free(resource))
            assert rows[resource] == allocatable - free > 0
            account = {"held": rows[resource], "allocatable": allocatable, "free": free}
            assert printed["resources"][resource] == account | {"lost": 0, "twice": 0}
            by_container = shown["tegra_device_plugin_held_devices"]
            assert sum(n for labels, n in by_container.items() if labels[-1] == resource) == rows[resource]
            assert shown["tegra_device_plugin_free_devices"][resource,] == free

        figures = ("percent", "memory_limit_mib", "memory_used_mib")
        assert {
            (row["namespace"], row["pod"], row["container"]): tuple(row[figure] for figure in figures)
            for row in printed["containers"]
        } == {
            ("a", "train", "main"): (30, 1024, 0),
            ("a", "train", "side"): (None, 768, 140),
            ("b", "serve", "main"): (1, 3072, 0),
            ("b", "train", "main"): (5, None, None),
        }
        assert shown["tegra_device_plugin_weight_percent"] == {
            ("main", "a", "train"): 30, ("main", "b", "serve"): 1, ("main", "b", "train"): 5,
        }  # fmt: skip
        own = ("tegra_device_plugin_memory_limit_bytes", "tegra_device_plugin_memory_used_bytes")
        hami = ("vGPU_device_memory_limit_in_bytes", "vGPU_device_memory_usage_in_bytes")
        for (limit, used), side in (
            (own, ("side", "a", "train")),
            (hami, ("side", "igpu0", "train", "a", "0")),
        ):
            assert shown[limit][side] == 768 * MIB
            assert shown[used][side] == 140 * MIB
            assert len(shown[used]) == 3


async def test_accounts_separate_ended_pods_and_lost_devices(
    kubelet: FakeKubelet, start: Start, node: Node, board: Path
) -> None:
    async with pod_resources(kubelet) as pods, start(*node.arguments):
        await kubelet.until(lambda: kubelet.allocatable() == 124, "units")
        await pods.admits(("n", "web-0", "main"), {MEMORY: 4})
        pods.devices["n", "next", "main"] = {MEMORY: ["m1", "m2"]}
        account = {"held": 6, "allocatable": 24, "free": 20, "lost": 0, "twice": 2}
        assert (await allocations(pods, node))["resources"][MEMORY] == account
        node.share("units: {memoryTotal: 512Mi}")
        await kubelet.until(lambda: kubelet.allocatable(MEMORY) == 2, "less memory")
        account = {"held": 6, "allocatable": 2, "free": 0, "lost": 2, "twice": 2}
        assert (await allocations(pods, node))["resources"][MEMORY] == account


async def test_without_the_kubelets_answer_the_page_has_the_rest(
    kubelet: FakeKubelet, start: Start, node: Node
) -> None:
    address = free_address()
    async with start(*node.arguments, f"--metrics-address={address}") as plugin:
        await kubelet.until(lambda: kubelet.allocatable() == 124, "units")
        for _ in range(2):
            shown = await metrics(address)
            assert "tegra_device_plugin_held_devices" not in shown
            assert len(shown["tegra_device_plugin_devices"]) == 2
        assert plugin.log.read_text().count("no metrics of shares: ") == 1


async def test_the_kubelet_is_queried_only_with_units_and_not_for_each_page(
    kubelet: FakeKubelet, start: Start, node: Node
) -> None:
    address = free_address()
    async with pod_resources(kubelet) as pods, start(*node.arguments, f"--metrics-address={address}"):
        await kubelet.until(lambda: kubelet.allocatable() == 124, "units")
        await asyncio.gather(*(metrics(address) for _ in range(3)))
        assert pods.queries == 1
    node.share("timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}")
    async with pod_resources(kubelet) as pods, start(*node.arguments, f"--metrics-address={address}"):
        await kubelet.until(lambda: kubelet.allocatable("nvidia.com/gpu") == 4, "replicas")
        await metrics(address)
        assert pods.queries == 0
