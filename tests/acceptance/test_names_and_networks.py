# SPDX-License-Identifier: Apache-2.0
"""Two boards as flashed: they have one hostname, and LTE is their first way out."""

import json

import pytest

from images.arm64 import build as plugin
from tests.acceptance import network
from tests.acceptance.cluster import Cluster, starts
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "names"
NAMED = "--extra-vars=jetson_set_hostname=true"
# Docker mounts both files into a board's container, where nothing could be moved onto them.
AS_FLASHED = r"""
for file in /etc/hosts /etc/hostname; do cp $file /tmp/kept; umount $file; cp /tmp/kept $file; done
echo '127.0.1.1 ubuntu' >> /etc/hosts
hostnamectl set-hostname ubuntu
"""
LTE = """
ip link add wwan0 type veth peer name modem0
ip address add 100.64.7.{number}/24 dev wwan0
ip link set wwan0 up
ip link set modem0 up
ip route add default via 100.64.7.1 metric 1
"""


@pytest.fixture(scope="module")
def first_run(boards: list[Board]) -> PlaybookRun:
    for number, one in enumerate(boards, 2):
        one.exec("sh", "-ec", AS_FLASHED + LTE.format(number=number))
    return run_playbook(LAB, "site.yml", NAMED)


@pytest.fixture(scope="module")
def cluster(boards: list[Board], first_run: PlaybookRun) -> Cluster:
    first_run.checked()
    return Cluster(boards)


def test_nodes_have_the_names_of_the_inventory_and_the_addresses_of_the_site(
    boards: list[Board], cluster: Cluster
) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    found = {
        node["metadata"]["name"]: [
            entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP"
        ]
        for node in nodes
    }
    assert found == {one.name: [one.address] for one in boards}
    for one in boards:
        assert one.exec("hostnamectl", "--static").strip() == one.name
        assert f"127.0.1.1\t{one.name}" in one.exec("cat", "/etc/hosts")


def test_second_run_changes_and_restarts_nothing(boards: list[Board], cluster: Cluster) -> None:
    before = starts(boards)
    run_playbook(LAB, "site.yml", NAMED).unchanged()
    assert starts(boards) == before


def test_pods_of_both_boards_talk_to_each_other(cluster: Cluster) -> None:
    network.check(cluster, plugin.reference())


def test_names_that_are_taken_are_refused_before_anything_changes(
    boards: list[Board], cluster: Cluster
) -> None:
    agent = boards[1]
    gone = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "jetson-9"}}
    cluster.boards[0].exec("sh", "-c", f"echo '{json.dumps(gone)}' | k3s kubectl create --filename=-")
    agent.exec("hostnamectl", "set-hostname", "jetson-9")
    limit = f"--limit={agent.name}"

    renamed = run_playbook(LAB, "preflight.yml", limit)
    assert "[error] node-renamed" in renamed.output
    run_playbook(LAB, "reset.yml", limit, "--extra-vars=jetson_k3s_confirm=without-server").checked()
    taken = run_playbook(LAB, "preflight.yml", limit)
    assert "[error] hostname-duplicate" in taken.output
    assert f"{agent.name} and the cluster's node jetson-9 (no address) all call themselves" in taken.output
