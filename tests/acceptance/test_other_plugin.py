# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own device plugin and this project's in one cluster: NVIDIA's first, and the board first.

The tests are one story, in the order of the file. NVIDIA's plugin is the real program. What it finds is
SIMULATED: the plain host has no GPU, and the plugin offers one there because it is told to look for a Tegra.

Its DaemonSet is NVIDIA's plain manifest with an affinity: first the default of NVIDIA's chart, then that of
plugin/deploy/nvidia. Boards of the lab are amd64, so its nodeSelector is for the tests of the chart.
No Node Feature Discovery runs here: the test sets the label that it gives a Xavier.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import cluster_status, run_playbook
from tests.lab import board, nvidia_plugin
from tests.lab.board import Board
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "other-plugin"
TYPES = (board.PLAIN, "xaviernx-jp5")
PLAIN, XAVIER = "jetson-1", "jetson-2"
LABEL, OPERANDS = "jetson-k3s.github.io/device-plugin", "nvidia.com/gpu.deploy.operands"
PRESENT, CPU = "nvidia.com/gpu.present", "feature.node.kubernetes.io/cpu-model.vendor_id"
SECONDS = 120
VALUES: dict[str, Any] = yaml.safe_load(
    (CHECKOUT / "plugin/deploy/nvidia/device-plugin-values.yaml").read_text()
)


def term(key: str, value: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}


# Two of the three terms of NVIDIA's chart.
DEFAULT = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [term(CPU, "NVIDIA"), term(PRESENT, "true")]
        }
    }
}


@pytest.fixture(scope="module")
def cluster(boards: list[Board]) -> Cluster:
    return Cluster(boards)


def install(cluster: Cluster, affinity: dict[str, Any]) -> None:
    """Create NVIDIA's DaemonSet, or change it, with an affinity in the place of a node's name."""
    config, daemonset = nvidia_plugin.manifests("", {"version": "v1"})
    spec = daemonset["spec"]["template"]["spec"]
    del spec["nodeSelector"]
    spec["affinity"] = affinity
    cluster.apply(config, daemonset)


def nvidias(cluster: Cluster) -> set[str]:
    """The nodes with a pod of NVIDIA's plugin that runs."""
    pods = cluster.get("pods", "--namespace=kube-system", f"--selector=name={nvidia_plugin.LABELS['name']}")
    return {
        pod["spec"]["nodeName"]
        for pod in pods["items"]
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def wait_for(cluster: Cluster, *nodes: str) -> None:
    wait_until(lambda: nvidias(cluster) == set(nodes), f"NVIDIA's plugin on {nodes} alone", SECONDS)


def wait_for_gpus(cluster: Cluster, gpus: dict[str, int]) -> None:
    wait_until(lambda: cluster.allocatable() == gpus, f"allocatable {gpus}", SECONDS)


def problems(tmp_path: Path) -> dict[str, list[str]]:
    """By node, the lines of status.yml about two plugins."""
    return {node["name"]: node["two_plugins"] for node in cluster_status(LAB, tmp_path)["nodes"]}


def test_nvidias_plugin_is_first_and_preflight_warns_before_the_board_joins(
    boards: list[Board], cluster: Cluster
) -> None:
    run_playbook(LAB, "site.yml", f"--limit={PLAIN}").checked()
    nvidia_plugin.load(boards[0])
    cluster.kubectl("label", "node", PLAIN, f"{PRESENT}=true")
    install(cluster, DEFAULT)
    wait_for(cluster, PLAIN)
    wait_for_gpus(cluster, {PLAIN: 1})
    run = run_playbook(LAB, "preflight.yml")
    words = " ".join(run.checked().output.split())
    assert "[warning] second-device-plugin-selects" in words
    assert "kubernetes.io/arch: amd64" in words


def test_board_joins_and_each_node_has_one_plugin(
    boards: list[Board], cluster: Cluster, tmp_path: Path
) -> None:
    run_playbook(LAB, "site.yml").checked()
    wait_for_gpus(cluster, {PLAIN: 1, XAVIER: 1})
    assert nvidias(cluster) == {PLAIN}
    (node,) = (one for one in cluster.nodes() if one["metadata"]["name"] == XAVIER)
    given = node["metadata"]["labels"]
    assert (given[LABEL], given[OPERANDS]) == ("true", "false")
    found = {node["name"]: node for node in cluster_status(LAB, tmp_path)["nodes"]}
    assert found[PLAIN]["other_plugins"] == [f"kube-system/{nvidia_plugin.NAME}"]
    assert {name: one["problem"] for name, one in found.items()} == {PLAIN: None, XAVIER: None}
    assert {name: one["two_plugins"] for name, one in found.items()} == {PLAIN: [], XAVIER: []}


def test_second_plugin_on_the_board_is_found_by_status_and_stops_preflight(
    boards: list[Board], cluster: Cluster, tmp_path: Path
) -> None:
    nvidia_plugin.load(boards[1], "docker")
    # As Node Feature Discovery labels a Xavier.
    cluster.kubectl("label", "node", XAVIER, f"{CPU}=NVIDIA")
    wait_for(cluster, PLAIN, XAVIER)
    found = problems(tmp_path)
    assert found[PLAIN] == []
    (line,) = found[XAVIER]
    assert f"DaemonSet {nvidia_plugin.NAME} in namespace kube-system" in line
    assert f"kubectl --namespace kube-system edit daemonset {nvidia_plugin.NAME}" in line
    run = run_playbook(LAB, "site.yml")
    words = " ".join(run.output.split())
    assert run.returncode != 0
    assert "[error] second-device-plugin" in words
    assert {name: recap.changed for name, recap in run.recap.items()} == {PLAIN: 0, XAVIER: 0}


def test_values_file_takes_nvidias_plugin_off_the_board(
    boards: list[Board], cluster: Cluster, tmp_path: Path
) -> None:
    install(cluster, VALUES["affinity"])
    wait_for(cluster, PLAIN)
    wait_for_gpus(cluster, {PLAIN: 1, XAVIER: 1})
    assert problems(tmp_path) == {PLAIN: [], XAVIER: []}
    run_playbook(LAB, "site.yml").checked()
    run_playbook(LAB, "verify.yml").checked()


def test_nvidias_plugin_comes_after_the_boards(boards: list[Board], cluster: Cluster, tmp_path: Path) -> None:
    cluster.kubectl("--namespace=kube-system", "delete", "daemonset", nvidia_plugin.NAME)
    wait_for(cluster)
    # The label that the chart takes for a GPU, on the board as well.
    cluster.kubectl("label", "node", XAVIER, f"{PRESENT}=true")
    install(cluster, VALUES["affinity"])
    wait_for(cluster, PLAIN)
    wait_for_gpus(cluster, {PLAIN: 1, XAVIER: 1})
    assert problems(tmp_path) == {PLAIN: [], XAVIER: []}
    assert run_playbook(LAB, "preflight.yml").checked().recap[XAVIER].failed == 0


def test_label_of_boards_on_the_plain_host_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.kubectl("label", "node", PLAIN, f"{LABEL}=true")
    # By the affinity of the values file, NVIDIA's plugin leaves. By the default of the chart, it stays.
    install(cluster, DEFAULT)
    wait_until(lambda: PLAIN in nvidias(cluster), "NVIDIA's plugin on the plain host", SECONDS)
    (line,) = problems(tmp_path)[PLAIN]
    assert f"label node {PLAIN} {LABEL}-" in line
