# SPDX-License-Identifier: Apache-2.0
"""A board was off while its cluster had two upgrades: one run brings it along.

The last agent is off. The upgrades are to SIMULATED minor versions: the same K3s under later names.
"""

import json
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """A cluster whose last board then loses its power, and a bundle for each upgrade."""
    with lab.fresh(LAB, TYPES) as up:
        for minors in (1, 2):
            bundle.write(newer(minors), minors=minors)
        run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(QUICK)}").checked()
        docker("kill", up[-1].container)
        yield up


def newer(minors: int) -> Path:
    return inventory.bundle_path(LAB).with_name(f"newer-{minors}")


def run(playbook: str, minors: int, *arguments: str) -> PlaybookRun:
    given = json.dumps({"jetson_k3s_bundle": str(newer(minors)), **QUICK})
    return run_playbook(LAB, playbook, f"--extra-vars={given}", *arguments)


def version(one: Board) -> str:
    return one.exec("k3s", "--version").split()[2]


def test_agent_that_missed_two_upgrades_goes_straight_to_its_servers_k3s(boards: list[Board]) -> None:
    *there, late = boards
    for minors, named in enumerate(MISSED, 1):
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
