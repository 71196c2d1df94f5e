# SPDX-License-Identifier: Apache-2.0
"""A board was off while its cluster had two upgrades and other settings: one run brings it along.

The last agent is off. The upgrades are to SIMULATED minor versions: the same K3s under later names.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, bundle, inventory, k3s, lab
from tests.lab.board import Board
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "were-off"
TYPES = ("agxorin-jp6", "orinnano-jp6", "xaviernx-jp5")
MISSED = tuple(k3s.named_version(minors=minors) for minors in (1, 2))
QUICK = {"gpu_verify_mode": "undisturbed"}
SUMMER = QUICK | {
    "k3s_agent_config": {"kubelet-arg": ["max-pods=40"]},
    "k3s_node_taints": ["season=summer:PreferNoSchedule"],
}
WINTER = QUICK | {"k3s_agent_config": {"kubelet-arg": ["max-pods=30"]}, "k3s_node_labels": {"site": "north"}}
STARTED = ("systemctl", "show", "--property=MainPID", "k3s*")


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """A cluster whose last board then loses its power, and a bundle for each upgrade."""
    with lab.fresh(LAB, TYPES) as up:
        for minors in (1, 2):
            bundle.write(newer(minors), minors=minors)
        run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(SUMMER)}").checked()
        docker("kill", up[-1].container)
        yield up


def newer(minors: int) -> Path:
    return inventory.bundle_path(LAB).with_name(f"newer-{minors}")


def run(playbook: str, minors: int, settings: Mapping[str, object], *arguments: str) -> PlaybookRun:
    given = json.dumps({"jetson_k3s_bundle": str(newer(minors)), **settings})
    return run_playbook(LAB, playbook, f"--extra-vars={given}", *arguments)


def version(one: Board) -> str:
    return one.exec("k3s", "--version").split()[2]


def test_agent_that_missed_two_upgrades_goes_straight_to_its_servers_k3s(boards: list[Board]) -> None:
    *there, late = boards
    for minors, named in enumerate(MISSED, 1):
        upgrade = run("upgrade.yml", minors, SUMMER)
        assert upgrade.recap[late.name].unreachable == 1, upgrade.output
        assert [upgrade.recap[one.name].failed for one in there] == [0, 0], upgrade.why
        assert [version(one) for one in there] == [named, named]
    board.start(late)
    assert version(late) != MISSED[0]
    run("site.yml", 2, SUMMER, f"--limit={late.name}").checked()
    assert version(late) == MISSED[-1]
    of_node = f"involvedObject.name={late.name},reason=NodeNotSchedulable"
    cordoned = Cluster(boards).kubectl("get", "events", f"--field-selector={of_node}", "--output=name")
    assert cordoned, "Kubernetes wants a node drained for that"


def test_one_run_brings_the_board_along_that_missed_settings(boards: list[Board]) -> None:
    cluster = Cluster(boards)
    *there, late = boards
    docker("kill", late.container)
    without = run("site.yml", 2, WINTER)
    assert without.recap[late.name].unreachable == 1, without.output
    assert [without.recap[one.name].failed for one in there] == [0, 0], without.why
    board.start(late)
    before = [one.exec(*STARTED) for one in there]
    site = run("site.yml", 2, WINTER, f"--limit={late.name}").checked()
    assert set(site.recap) == {late.name}
    node = json.loads(cluster.kubectl("get", "node", late.name, "--output=json"))
    assert node["status"]["capacity"]["pods"] == "30"
    assert node["metadata"]["labels"]["site"] == "north"
    assert {"taints", "unschedulable"} & set(node["spec"]) == set()
    assert cluster.allocatable() == {one.name: 1 for one in boards}
    assert [one.exec(*STARTED) for one in there] == before


def test_then_nothing_is_left_to_do(boards: list[Board]) -> None:
    run("site.yml", 2, WINTER).unchanged()
