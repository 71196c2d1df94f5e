# SPDX-License-Identifier: Apache-2.0
"""A simulated node for the agent's tests."""

from pathlib import Path

import pytest
from tegra_device_plugin.agent.pods import Pods, UnitResources
from tegra_device_plugin.system.hosttree import HostTree

from tests.conformance.pod_resources import Kubelet
from tests.unit.plugin.agent.node import CORE, MEMORY, UNIT_MIB, Node
from tests.unit.plugin.agent.nvgpu import SimulatedNvgpu


@pytest.fixture
def node(tmp_path: Path, kubelet: Kubelet) -> Node:
    return Node(tmp_path / "host", kubelet)


@pytest.fixture
def pods(node: Node) -> Pods:
    units = UnitResources(CORE, MEMORY, lambda ids: ids * UNIT_MIB * 2**20)
    return Pods(node.kubelet.socket, HostTree(node.root), units)


@pytest.fixture
def driver() -> SimulatedNvgpu:
    return SimulatedNvgpu()
