# SPDX-License-Identifier: Apache-2.0
"""Boards lose their power while the cluster is upgraded: the same command goes on where that one ended.

The tests are one story, in the order of the file, on one server and one agent.
"""

from collections.abc import Iterator

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, bundle, inventory, k3s, lab
from tests.lab.board import Board
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "upgrade-cut-off"
# The new binary is in place and K3s has not been restarted yet.
MOMENT = "TASK [k3s : Ensure the service is enabled and started]"
RECORD = "/usr/local/bin/k3s.previous"
OLD, NEW = k3s.VERSION, k3s.named_version("2")


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """A cluster of a server and an agent, and a bundle with a newer K3s."""
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as up:
        bundle.write(inventory.bundle_path(LAB).with_name("newer"), version_suffix="2")
        first = run_playbook(LAB, "site.yml")
        assert first.returncode == 0, first.why
        yield up


def upgrade(cut: Board | None = None) -> PlaybookRun:
    """Run the command; `cut` loses its power in the moment."""

    def cut_power(line: str) -> None:
        if cut is not None and line.startswith(MOMENT):
            docker("kill", cut.container)

    newer = inventory.bundle_path(LAB).with_name("newer")
    return run_playbook(LAB, "upgrade.yml", f"--extra-vars=jetson_k3s_bundle={newer}", on_line=cut_power)


def version(one: Board) -> str:
    """Which K3s a board has."""
    return one.exec("k3s", "--version").split()[2]


def test_server_that_loses_its_power_still_knows_the_way_back(boards: list[Board]) -> None:
    server, agent = boards
    cut_off = upgrade(cut=server)
    assert cut_off.recap[server.name].unreachable == 1, cut_off.output
    assert cut_off.recap[agent.name].changed == 0, "no agent may be newer than its server"
    board.start(server)
    assert server.exec("readlink", RECORD) == f"k3s-{OLD}"
    # Nobody has said for whom it would be encrypted.
    (kept,) = server.exec("sh", "-c", "ls /var/backups/jetson-k3s/k3s-*.tar.gz").split()
    assert server.exec("stat", "--format=%a %U", kept).strip() == "600 root"


def test_board_that_is_off_holds_up_no_other(boards: list[Board]) -> None:
    server, agent = boards
    docker("kill", agent.container)
    try:
        run = upgrade()
    finally:
        board.start(agent)
    assert run.returncode != 0, "a board that was not upgraded is no success"
    assert run.recap[agent.name].unreachable == 1, run.output
    assert run.recap[server.name].failed == 0, run.output
    assert [version(one) for one in boards] == [NEW, OLD]


def test_same_command_then_finishes_the_upgrade(boards: list[Board]) -> None:
    run = upgrade()
    assert run.returncode == 0, run.why
    assert [version(one) for one in boards] == [NEW, NEW]
    backups = boards[0].exec("sh", "-c", "ls /var/backups/jetson-k3s/k3s-*.tar.gz")
    assert len(backups.split()) == 1, "what goes on needs no second backup"
    cluster = Cluster(boards)
    assert cluster.allocatable() == {one.name: 1 for one in boards}
    for one in boards:
        assert one.exec("sh", "-c", f"ls {RECORD}", check=False) == ""
        node = cluster.kubectl("get", "node", one.name, "--output=yaml")
        assert "unschedulable" not in node
        assert "cordoned" not in node
