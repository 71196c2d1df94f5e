# SPDX-License-Identifier: Apache-2.0
"""A board is off while its cluster changes: a new plugin, then two upgrades of K3s.

The last agent is off. The upgrades are to SIMULATED minor versions: the same K3s under later names.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cluster import PLUGIN_PODS, RESOURCE, Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, bundle, inventory, k3s, lab
from tests.lab.board import Board
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "board-off"
TYPES = ("agxorin-jp6", "orinnano-jp6", "xaviernx-jp5")
HASH = r"{.items[0].metadata.labels.controller-revision-hash}"
MISSED = tuple(k3s.named_version(minors=minors) for minors in (1, 2))


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """A server and two agents, whose GPUs are exclusive."""
    with lab.fresh(LAB, TYPES) as up:
        run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").checked()
        yield up


def site(replicas: int, *arguments: str) -> PlaybookRun:
    """Deploy a plugin that shares each GPU among so many: other settings are another template."""
    shared = {"timeSlicing": {"resources": [{"name": RESOURCE, "replicas": replicas}]}}
    config = {"gpu_device_plugin_config": {"version": "v1", "sharing": shared}}
    return run_playbook(
        LAB, "site.yml", "--tags=gpu_device_plugin", "--extra-vars", json.dumps(config), *arguments
    )


def template_of(boards: list[Board], one: Board) -> str:
    """Which of the DaemonSet's templates the plugin's pod on a board is of."""
    pods = ("--namespace=kube-system", "get", "pods", f"--selector={PLUGIN_PODS}")
    return Cluster(boards).kubectl(
        *pods, f"--field-selector=spec.nodeName={one.name}", f"--output=jsonpath={HASH}"
    )


def test_board_that_is_off_keeps_no_other_from_the_new_plugin(boards: list[Board]) -> None:
    *on, off = boards
    old = template_of(boards, off)
    docker("kill", off.container)
    run = site(replicas=2)
    assert run.recap[off.name].unreachable == 1, run.output
    for one in on:
        assert (run.recap[one.name].failed, run.recap[one.name].unreachable) == (0, 0), run.why
        assert template_of(boards, one) != old
        assert Cluster(boards).allocatable()[one.name] == 2
    assert template_of(boards, off) == old


def test_its_next_run_brings_it_to_the_board_that_was_off_and_renews_no_other(boards: list[Board]) -> None:
    *_, off = boards
    pods = [Cluster(boards).plugin_pod(one.name) for one in boards[:-1]]
    board.start(off)
    wait_until(
        lambda: Cluster(boards).plugin_pod(off.name) is not None, "the board is back with its plugin", 120
    )
    site(2, f"--limit={off.name}").checked()
    assert len({template_of(boards, one) for one in boards}) == 1
    assert [Cluster(boards).plugin_pod(one.name) for one in boards[:-1]] == pods
    site(replicas=2).unchanged()


def newer(minors: int) -> Path:
    return inventory.bundle_path(LAB).with_name(f"newer-{minors}")


def run(playbook: str, minors: int, *arguments: str) -> PlaybookRun:
    given = json.dumps({"jetson_k3s_bundle": str(newer(minors)), "gpu_verify_mode": "undisturbed"})
    return run_playbook(LAB, playbook, f"--extra-vars={given}", *arguments)


def version(one: Board) -> str:
    return one.exec("k3s", "--version").split()[2]


def test_agent_that_missed_two_upgrades_goes_straight_to_its_servers_k3s(boards: list[Board]) -> None:
    *there, late = boards
    docker("kill", late.container)
    for minors, named in enumerate(MISSED, 1):
        bundle.write(newer(minors), minors=minors)
        upgrade = run("upgrade.yml", minors)
        assert upgrade.recap[late.name].unreachable == 1, upgrade.output
        assert [upgrade.recap[one.name].failed for one in there] == [0, 0], upgrade.why
        assert [version(one) for one in there] == [named, named]
    board.start(late)
    assert version(late) != MISSED[0]
    run("site.yml", 2, f"--limit={late.name}").checked()
    assert version(late) == MISSED[-1]
    of_node = f"involvedObject.name={late.name},reason=NodeNotSchedulable"
    cordoned = Cluster(boards).kubectl("get", "events", f"--field-selector={of_node}", "--output=name")
    assert cordoned, "Kubernetes wants a node drained for that"
