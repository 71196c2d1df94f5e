# SPDX-License-Identifier: Apache-2.0
"""A change that restarts Docker or K3s goes from node to node, no further than the first failure."""

import json
from collections.abc import Iterator, Sequence

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import lab
from tests.lab.board import Board
from tests.lab.vm.machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "rolling-restart"
STARTED = ("systemctl", "show", "--property=ActiveEnterTimestampMonotonic", "--value")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as boards:
        run_playbook(LAB, "site.yml").checked()
        made = Cluster(boards)
        made.create_jobs()
        yield made


FEWER_PODS = {
    "nvidia_docker_daemon_config": {"icc": True},
    "k3s_server_config": {"kubelet-arg": ["max-pods=40"]},
    "k3s_agent_config": {"kubelet-arg": ["max-pods=30"]},
}


def room(cluster: Cluster) -> list[int]:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    by_name = {node["metadata"]["name"]: int(node["status"]["capacity"]["pods"]) for node in nodes}
    return [by_name[board.name] for board in cluster.boards]


def site(**variables: object) -> PlaybookRun:
    given = json.dumps({"gpu_verify_mode": "undisturbed"} | variables)
    return run_playbook(LAB, "site.yml", f"--extra-vars={given}")


def with_docker(**settings: object) -> PlaybookRun:
    return site(nvidia_docker_daemon_config=settings)


def started(boards: Sequence[Board | Machine], unit: str = "docker") -> list[int]:
    units = {board: "k3s-agent" if unit == "k3s" and board is not boards[0] else unit for board in boards}
    return [int(board.exec(*STARTED, units[board])) for board in boards]


def unschedulable(cluster: Cluster) -> list[str]:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    return [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]


def job(cluster: Cluster) -> str:
    return cluster.kubectl("get", "pods", "--selector=app=jobs", "--output=name")


def test_nodes_restart_docker_one_after_the_other(cluster: Cluster) -> None:
    before, pod = started(cluster.boards), job(cluster)
    with_docker(icc=True).checked()
    after = started(cluster.boards)
    assert before[0] < after[0] < after[1]
    assert unschedulable(cluster) == []
    assert cluster.allocatable() == {board.name: 1 for board in cluster.boards}
    # Moved, not ended where it was.
    assert job(cluster) != pod
    again = with_docker(icc=True)
    assert all(again.recap[board.name].changed == 0 for board in cluster.boards), again.output
    assert started(cluster.boards) == after


def test_nodes_restart_k3s_one_after_the_other_below_their_pods(cluster: Cluster) -> None:
    before, docker, pod = started(cluster.boards, "k3s"), started(cluster.boards), job(cluster)
    site(**FEWER_PODS).checked()
    after = started(cluster.boards, "k3s")
    assert before[0] < after[0] < after[1]
    assert room(cluster) == [40, 30]
    assert started(cluster.boards) == docker
    assert job(cluster) == pod


def test_setting_that_is_taken_out_of_the_inventory_goes_from_the_boards(cluster: Cluster) -> None:
    with_docker(icc=True).checked()
    assert room(cluster) == [110, 110]  # the kubelet's default


def test_first_failure_is_the_last(cluster: Cluster) -> None:
    before = started(cluster.boards)
    # dockerd before 23 cannot check a file, so it finds this at its start.
    run = with_docker(icc=True, **{"log-driver": "no-such-driver"})
    assert run.returncode != 0
    assert "a changed setting needs a restart of Docker or K3s, and that went wrong" in run.output
    assert "no-such-driver" in run.output
    assert started(cluster.boards)[1] == before[1]
    assert unschedulable(cluster) == []

    with_docker(icc=True, **{"log-driver": "json-file"}).checked()
    assert unschedulable(cluster) == []
    wait_until(
        lambda: cluster.allocatable() == {board.name: 1 for board in cluster.boards}, "GPUs again", 120
    )
    after = started(cluster.boards)
    assert after[0] > before[0]
    assert after[1] == before[1]  # it has kept what the inventory says again
