# SPDX-License-Identifier: Apache-2.0
"""The share of each pod, and when the kubelet is queried."""

import logging
import threading
from pathlib import Path

import pytest
from tegra_device_plugin.agent import pods as module
from tegra_device_plugin.agent.node_agent import unit_resources
from tegra_device_plugin.agent.pods import PodName, Pods, Share, UnitResources, container_names, shares
from tegra_device_plugin.config.settings import AgentSettings, load_agent
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.system.hosttree import HostTree

from tests.unit.plugin.agent.node import Node, Pod, uid

MIB = 2**20
UNITS = UnitResources("a/core", "a/memory", lambda ids: ids * 100)


def test_containers_of_a_pod_add_up_and_other_resources_are_no_share() -> None:
    requests = [
        ("p", "c1", "a/core", 30),
        ("p", "c2", "a/core", 5),
        ("p", "c1", "a/memory", 4),
        ("q", "c", "nvidia.com/gpu", 1),
    ]
    found = [ContainerAllocation("n", pod, name, resource, "x0", n) for pod, name, resource, n in requests]
    assert shares(found, UNITS) == {PodName("n", "p"): Share(percent=35, memory_bytes=400)}


@pytest.mark.parametrize(
    ("units", "core", "memory", "bytes_of_3"),
    [
        ("memoryTotal: 4Gi, memoryUnit: 64Mi", "jetson-k3s.github.io/gpu-core", "gpu-memory", 3 * 64 * MIB),
        ("memoryTotal: 4Gi, preset: hami", "nvidia.com/gpucores", "nvidia.com/gpumem", 3 * MIB),
        ("memoryTotal: 4Gi, preset: gpushare", "", "aliyun.com/gpu-mem", 3 * 1024 * MIB),
        ("memoryTotal: 400Mi, preset: koordinator", "koordinator.sh/gpu-core", "gpu-memory-ratio", 12 * MIB),
    ],
)
def test_unit_resources_are_the_plugins(
    units: str, core: str, memory: str, bytes_of_3: int, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"version: v1\nsharing: {{units: {{{units}}}}}\n")
    found = unit_resources(load_agent(file, {}, {}))
    assert (found.core, found.memory_bytes(3)) == (core, bytes_of_3)
    assert found.memory.endswith(memory)


def test_without_units_there_are_no_shares() -> None:
    allocations = [ContainerAllocation("n", "p", "c", "nvidia.com/gpu", "igpu0")]
    assert shares(allocations, unit_resources(AgentSettings())) == {}


def test_a_container_is_known_by_the_link_to_its_log(node: Node) -> None:
    id_ = "ab" * 32
    for name in (f"web-0_default_c-1-{id_}.log", f"{'x' * 150}_n_{'y' * 37}-{'0' * 60}.log", "other"):
        node.log(name)
    assert container_names(HostTree(node.root)) == {id_: "c-1"}


async def test_the_kubelet_is_queried_for_new_pods_only(
    node: Node, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.admits(Pod(1, "vision", percent=30))
    for _ in range(3):
        await pods.refresh({uid(1)})
    assert node.kubelet.queries == 1
    node.admits(Pod(2, "speech", percent=50))
    await pods.refresh({uid(1), uid(2)})
    assert (node.kubelet.queries, pods.share(uid(2)).percent) == (2, 50)
    await pods.refresh({uid(9)})  # which it does not know yet
    await pods.refresh({uid(9)})
    assert (node.kubelet.queries, pods.share(uid(9))) == (3, Share())
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    await pods.refresh(set())
    assert node.kubelet.queries == 4


async def test_a_disk_that_hangs_stops_neither_the_loop_nor_the_agent(
    node: Node, pods: Pods, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(module, "pod_names", lambda _host: go_on.wait(5) and {})
    monkeypatch.setattr(pods._blocking, "_deadline", 0.05)
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    for _ in range(3):
        await pods.refresh({uid(1)})
    assert len(set(threading.enumerate()) - before) == 1
    assert caplog.text.count("the pods' shares are not known: ") == 2  # the first one and later ones
    go_on.set()
    await pods._blocking.settle()


async def test_without_a_kubelet_shares_stay_and_a_new_pod_has_no_limit(
    node: Node, pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    node.admits(Pod(1, "web-0", units=2))
    await pods.refresh({uid(1)})
    node.kubelet.refuses = True
    node.admits(Pod(2, "web-0", units=8))  # the same name again, as a StatefulSet's
    with caplog.at_level(logging.INFO):
        await pods.refresh({uid(1), uid(2)})
        await pods.refresh({uid(1), uid(2)})
        assert [record.message for record in caplog.records] == [
            f"the pods' shares are not known: the kubelet at {node.kubelet.socket}: UNIMPLEMENTED: "
            "no such feature"
        ]
        assert (pods.share(uid(1)).memory_bytes, pods.share(uid(2))) == (2 * 64 * 2**20, Share())
        node.kubelet.refuses = False
        node.pods.pop(0)
        node.admits(node.pods.pop())
        await pods.refresh({uid(2)})
    assert caplog.records[-1].message == "the pods' shares are known again"
    assert pods.share(uid(2)).memory_bytes == 8 * 64 * 2**20
