# SPDX-License-Identifier: Apache-2.0
"""Pods run by containerd under a Kubernetes of this year: the other way to run K3s.

The tests are one story, in the order of the file, on a server and an agent.
"""

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.acceptance import containerd, network
from tests.acceptance.cluster import RESOURCE, Cluster, wait_until
from tests.acceptance.containerd import CONTAINERD
from tests.acceptance.openpgp import keyring
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, kubernetes
from tests.lab.board import Board
from tests.lab.paths import lab_dir

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "containerd"


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """Two boards, and a bundle with the Kubernetes that drives containerd."""
    containerd.skip_without_go()
    with containerd.fresh(LAB, ["agxorin-jp6", "orinnano-jp6"]) as up:
        yield up


@pytest.fixture
def one(boards: list[Board]) -> Board:
    """The server, which is a node as well."""
    return boards[0]


def bundled(key: str) -> str:
    """Return what the bundle says of itself."""
    described = containerd.bundle_path(LAB) / "bundle.yml"
    return str(yaml.safe_load(described.read_text())[key])


def site(*arguments: str) -> PlaybookRun:
    """Run site.yml with containerd's bundle."""
    return run_playbook(LAB, "site.yml", CONTAINERD, containerd.bundle_argument(LAB), *arguments)


def test_one_run_serves_and_proves_the_gpus(boards: list[Board]) -> None:
    run = site()
    assert run.returncode == 0, run.why
    assert Cluster(boards).allocatable() == {each.name: 1 for each in boards}


def test_the_pods_are_containerds_and_the_gpu_is_by_the_runtime_class(one: Board) -> None:
    cluster = Cluster([one])
    node = json.loads(cluster.kubectl("get", "node", one.name, "--output=json"))["status"]["nodeInfo"]
    assert node["containerRuntimeVersion"].startswith("containerd://2.")
    assert node["kubeletVersion"].startswith(f"v{kubernetes.VERSION}.")
    assert one.exec("docker", "ps", "--quiet") == ""
    assert "nvidia" in cluster.kubectl("get", "runtimeclass", "--output=name")


def test_pods_of_two_boards_talk_to_each_other_and_by_a_service(boards: list[Board]) -> None:
    network.check(Cluster(boards), bundled("plugin_image"))


def test_a_pods_status_says_that_its_gpu_has_died(one: Board) -> None:
    cluster = Cluster([one], runtime_class="nvidia")
    cluster.hold_gpu("train", one.name, bundled("device_query_image"))
    try:
        wait_until(lambda: cluster.health_in_pod("train") == ["Healthy"], "a healthy GPU in the pod", 60)
        board.set_state(one, "dead")
        wait_until(lambda: cluster.health_in_pod("train") == ["Unhealthy"], "a dead GPU in the pod", 60)
        board.set_state(one, "ready")
        wait_until(lambda: cluster.health_in_pod("train") == ["Healthy"], "the GPU again in the pod", 60)
    finally:
        board.set_state(one, "ready")
        cluster.kubectl("delete", "pod", "train", "--wait=true")


def test_a_kubelet_that_is_restarted_has_the_gpu_again(boards: list[Board]) -> None:
    boards[0].exec("systemctl", "restart", "k3s")
    cluster = Cluster(boards)
    wait_until(lambda: all(cluster.allocatable().values()), f"{RESOURCE} after a restart", 120)


def test_a_second_run_changes_nothing(boards: list[Board]) -> None:
    again = site()
    assert again.returncode == 0, again.why
    assert {each.name: again.recap[each.name].changed for each in boards} == {
        each.name: 0 for each in boards
    }, again.output


def test_strict_mode_is_refused_where_the_toolkit_ignores_it(one: Board) -> None:
    run = site("--extra-vars=nvidia_docker_strict=true")
    assert run.returncode != 0
    assert "nvidia-runtime-strict" in run.output
    assert not one.exec("cat", "/etc/nvidia-container-runtime/config.toml", check=False)


def test_strict_mode_keeps_the_gpu_from_a_pod_that_has_not_asked(one: Board, boards: list[Board]) -> None:
    for each in boards:
        board.set_toolkit(each, "1.18.0")
    run = site("--extra-vars=nvidia_docker_strict=true")
    assert run.returncode == 0, run.why
    assert "uninvited passed" in " ".join(run.output.split())
    assert "= false  # jetson-k3s: strict" in one.exec("cat", "/etc/nvidia-container-runtime/config.toml")
    assert not one.exec("cat", "/etc/docker/daemon.json", check=False), "Docker is left as it is"


def test_the_gpu_is_there_again_after_a_reboot(one: Board) -> None:
    board.reboot(one)
    wait_until(lambda: all(Cluster([one]).allocatable().values()), f"{RESOURCE} after a reboot", 120)


def test_a_backup_of_sqlite_brings_the_cluster_back(one: Board, boards: list[Board]) -> None:
    cluster = Cluster(boards)
    cluster.kubectl("create", "configmap", "before")
    with keyring() as key:
        run = run_playbook(LAB, "backup.yml", f"--extra-vars=k3s_backup_recipient={key}")
        assert run.returncode == 0, run.why
        assert "(sqlite, " in run.output
        cluster.kubectl("delete", "configmap", "before")
        (file,) = (lab_dir(LAB) / "backups").iterdir()
        chosen = (
            CONTAINERD,
            containerd.bundle_argument(LAB),
            "--extra-vars=nvidia_docker_strict=true",
        )
        run = run_playbook(LAB, "restore.yml", f"--extra-vars=k3s_backup_file={file}", *chosen)
    assert run.returncode == 0, run.why
    assert "configmap/before" in cluster.kubectl("get", "configmaps", "--output=name")
    assert cluster.allocatable() == {each.name: 1 for each in boards}
    one.exec("test", "-s", "/var/lib/rancher/k3s/server/db/state.db")
