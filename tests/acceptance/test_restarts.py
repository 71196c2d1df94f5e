# SPDX-License-Identifier: Apache-2.0
"""Pods with a GPU on a board whose plug is pulled, beside a kubelet that refuses them: Kubernetes 1.36."""

from collections.abc import Iterator

import pytest
from tegra_device_plugin.kubelet.boot import CHECKPOINT

from images.arm64 import build as plugin
from tests import newer_go
from tests.acceptance.cluster import wait_until
from tests.acceptance.playbook import run_playbook
from tests.benchmarks import restarts
from tests.benchmarks.restarts import CAUSES, KINDS, Cause, Scenario
from tests.lab import board, kubernetes_1_36
from tests.lab.board import Board
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

ENDPOINTS = "/var/lib/kubelet/device-plugins"
BOOT_UNIT = "tegra-device-plugin-boot"


@pytest.fixture(scope="module")
def scenario() -> Iterator[Scenario]:
    """A server and an agent; the workloads are on the agent, whose server stays up."""
    with newer_go.skipped_without():
        kubernetes_1_36.compiled()
    with restarts.prepared("time-slicing", agent=True) as ready:
        yield ready


def pull_the_plug_of_an_unfit_board(scenario: Scenario) -> None:
    docker("kill", scenario.node.container)
    docker("start", scenario.node.container)  # not all of its units come up


UNFIT_BOOT = Cause(pull_the_plug_of_an_unfit_board, restarts.always)


def stand_by_serves(node: Board) -> bool:
    return "tegra-gpu--stand-by-" in node.exec("ls", ENDPOINTS)


@pytest.mark.parametrize("cause", CAUSES)
def test_no_pod_is_refused_and_none_ends_without_need(scenario: Scenario, cause: str) -> None:
    outcome = restarts.observed(scenario, CAUSES[cause])
    assert (outcome.refused, outcome.ended, outcome.without_gpu) == ({}, {}, 0)


def test_no_pod_is_refused_where_the_gpu_is_switched_on_after_docker_has_started(scenario: Scenario) -> None:
    board.switch_gpu_on_late(scenario.node, seconds=10)
    outcome = restarts.observed(scenario, CAUSES["power-cut"])
    assert (outcome.refused, outcome.without_gpu) == ({}, 0)
    since_boot = 'docker logs --since "$(docker inspect --format={{.State.StartedAt}} $1)" $1 2>&1'
    assert "unhealthy: not-powered" in scenario.node.exec("sh", "-c", since_boot, "sh", restarts.PLUGIN)


def test_plugins_pod_serves_when_it_runs_and_the_other_instance_when_it_does_not(scenario: Scenario) -> None:
    cluster, node = scenario.cluster, scenario.node
    wait_until(lambda: cluster.plugin_pod(node.name) is not None, "the plugin's pod", 120)
    before = restarts.running(cluster)
    cluster.kubectl("label", "node", node.name, "jetson-k3s.github.io/device-plugin-")
    wait_until(lambda: cluster.plugin_pod(node.name) is None, "no pod of the plugin", 120)
    wait_until(lambda: stand_by_serves(node), "the other instance serves", 30)
    wait_until(lambda: cluster.allocatable()[node.name] == len(KINDS), "the node has its GPU", 60)
    cluster.kubectl("label", "node", node.name, "jetson-k3s.github.io/device-plugin=true")
    wait_until(lambda: cluster.plugin_pod(node.name) is not None, "the plugin's pod again", 120)
    assert restarts.running(cluster) == before


def test_no_pod_is_refused_after_a_clean_up_of_dockers_images(scenario: Scenario) -> None:
    scenario.node.exec("docker", "image", "rm", "--force", plugin.reference())
    outcome = restarts.observed(scenario, CAUSES["power-cut"])
    assert (outcome.refused, outcome.without_gpu) == ({}, 0)


def test_damaged_files_of_docker_refuse_each_pod_once_and_site_yml_mends_them(scenario: Scenario) -> None:
    node = scenario.node
    layer = '{{index .GraphDriver.Data "UpperDir"}}'
    node.exec("sh", "-c", f"rm -rf $(docker inspect --format='{layer}' {restarts.PLUGIN})")
    # The boot before was cut short, when the kubelet had not started.
    node.exec("sh", "-c", 'cp "$1" "$1.before-boot" && printf "{}" > "$1"', "sh", f"{ENDPOINTS}/{CHECKPOINT}")
    outcome = restarts.observed(scenario, UNFIT_BOOT)
    assert outcome.refused.keys() == set(KINDS)
    assert outcome.without_gpu == 0
    assert node.exec("systemctl", "is-active", BOOT_UNIT, check=False).strip() == "failed"
    options = ("--tags=gpu_device_plugin", f"--limit={node.name}")
    given = restarts.settings("time-slicing", "containerd")
    run_playbook(restarts.LAB, "site.yml", *options, given).checked()
    assert restarts.observed(scenario, CAUSES["power-cut"]).refused == {}


def test_boot_whose_docker_does_not_start_refuses_each_pod_once(scenario: Scenario) -> None:
    """So the tests above prove something. The kubelet starts all the same, and controllers make new pods."""
    scenario.node.exec("sh", "-c", "echo '{' > /etc/docker/daemon.json")
    assert restarts.observed(scenario, UNFIT_BOOT).refused.keys() == set(KINDS)
    for unit in ("docker", BOOT_UNIT):
        assert "failed" in scenario.node.exec("systemctl", "is-active", unit, check=False)
