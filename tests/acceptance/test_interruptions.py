# SPDX-License-Identifier: Apache-2.0
"""Whatever cuts a run off, the same command succeeds once the cause is gone.

The tests are one story, in the order of the file, on one server and one agent.
"""

from collections.abc import Iterator

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, inventory, lab
from tests.lab.board import Board
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "interruptions"
# The moment in which K3s is started with what the tasks before have written.
MOMENT = "TASK [k3s : Ensure the service is enabled and started]"
# Smaller than K3s' binary: a SIMULATED full disk, the virtual boards having the machine's.
FULL_DISK = ("mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", "/usr/local/bin")
TOKEN_FILE = "/etc/rancher/k3s/jetson-k3s.token"


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """A server and an agent, both bare."""
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as up:
        yield up


def site(cut: Board | None = None) -> PlaybookRun:
    """Run the one command. `cut` loses its power in the moment when K3s is started for the first time."""
    done = False

    def cut_power(line: str) -> None:
        nonlocal done
        if cut is not None and not done and line.startswith(MOMENT):
            done = True
            docker("kill", cut.container)

    run = run_playbook(LAB, "site.yml", on_line=cut_power)
    assert done == (cut is not None), run.output
    return run


def test_damaged_bundle_changes_nothing(boards: list[Board]) -> None:
    archive = next(inventory.bundle_path(LAB).glob("tegra-device-plugin-*.tar.gz"))
    whole = archive.read_bytes()
    try:
        archive.write_bytes(whole[: len(whole) // 2])
        run = site()
    finally:
        archive.write_bytes(whole)
    assert "[error] bundle-file" in run.output
    assert {(recap.failed, recap.changed) for recap in run.recap.values()} == {(1, 0)}, run.output


def test_power_cut_of_one_board_while_another_is_off(boards: list[Board]) -> None:
    server, agent = boards
    docker("kill", agent.container)
    run = site(cut=server)
    assert run.recap[agent.name].unreachable == 1, run.output
    assert run.recap[server.name].changed > 0, "the board that was on had to go on without the other"
    assert run.recap[server.name].unreachable + run.recap[server.name].failed == 1, run.output
    for one in boards:
        board.start(one)


def test_full_disk_is_named_and_the_server_has_got_over_its_power_cut(boards: list[Board]) -> None:
    server, agent = boards
    agent.exec(*FULL_DISK)
    try:
        run = site()
    finally:
        agent.exec("umount", "/usr/local/bin")
    assert run.recap[agent.name].failed == 1, run.output
    assert "No space left on device" in run.output
    assert run.recap[server.name].failed == 0, run.output
    assert Cluster(boards).allocatable() == {server.name: 1}, "the server had to get its plugin all the same"


def test_same_command_then_succeeds(boards: list[Board]) -> None:
    run = site()
    assert run.returncode == 0, run.why
    assert Cluster(boards).allocatable() == {one.name: 1 for one in boards}


def test_token_that_the_server_does_not_take_any_more_is_replaced(boards: list[Board]) -> None:
    agent = boards[1]
    agent.exec("sed", "--in-place", "s/:[^:]*$/:expired/", TOKEN_FILE)
    agent.exec("systemctl", "restart", "k3s-agent", check=False)
    assert agent.exec("systemctl", "is-active", "k3s-agent", check=False) != "active"
    run = site()
    assert run.returncode == 0, run.why
    assert agent.exec("systemctl", "is-active", "k3s-agent") == "active"
