# SPDX-License-Identifier: Apache-2.0
"""Pods with a GPU on a board whose plug is pulled, beside a kubelet that refuses them: Kubernetes 1.36."""

from collections.abc import Iterator

import pytest

from tests import newer_go
from tests.acceptance.cluster import Cluster, wait_until
from tests.benchmarks import boots
from tests.lab import kubernetes_1_36
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

SHARING = "time-slicing"
LIMITS = boots.SHARING[SHARING][1]
ENDPOINTS = "/var/lib/kubelet/device-plugins"


@pytest.fixture(scope="module")
def prepared() -> Iterator[tuple[Cluster, Board]]:
    """A server and an agent; the workloads are on the agent, whose server stays up."""
    with newer_go.skipped_without():
        kubernetes_1_36.compiled()
    with boots.prepared(SHARING, agent=True) as ready:
        yield ready


def stand_by_serves(node: Board) -> bool:
    return "tegra-gpu--stand-by-" in node.exec("ls", ENDPOINTS)


@pytest.mark.parametrize("cut", [True, False], ids=["power cut", "reboot"])
def test_boot_refuses_no_pod(prepared: tuple[Cluster, Board], cut: bool) -> None:
    cluster, node = prepared
    refused, _ = boots.boot(cluster, node, LIMITS, cut=cut)
    assert refused == {}


def test_plugins_pod_serves_when_it_runs_and_the_other_instance_when_it_does_not(
    prepared: tuple[Cluster, Board],
) -> None:
    cluster, node = prepared
    wait_until(lambda: cluster.plugin_pod(node.name) is not None, "the plugin's pod", 120)
    before = boots.running(cluster)
    cluster.kubectl("label", "node", node.name, "jetson-k3s.github.io/device-plugin-")
    wait_until(lambda: cluster.plugin_pod(node.name) is None, "no pod of the plugin", 120)
    wait_until(lambda: stand_by_serves(node), "the other instance serves", 30)
    wait_until(lambda: cluster.allocatable()[node.name] == len(boots.KINDS), "the node has its GPU", 60)
    cluster.kubectl("label", "node", node.name, "jetson-k3s.github.io/device-plugin=true")
    wait_until(lambda: cluster.plugin_pod(node.name) is not None, "the plugin's pod again", 120)
    assert boots.running(cluster) == before


def test_boot_without_that_instance_refuses_every_pod(prepared: tuple[Cluster, Board]) -> None:
    """So the tests above prove something."""
    cluster, node = prepared
    node.exec("docker", "rm", "--force", boots.PLUGIN)
    refused, _ = boots.boot(cluster, node, LIMITS, cut=True)
    assert refused.keys() == set(boots.KINDS)
