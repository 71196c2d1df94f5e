# SPDX-License-Identifier: Apache-2.0
"""Two people run playbooks over the same boards: one waits, and the lock of a run that is gone is over."""

import json

import pytest

from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board
from tests.lab.board import Board
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "two-operators"
LOCK = "/run/jetson-k3s-lock/lock.json"
# In the middle of the changes of a first run, which has about a minute to go.
MOMENT = "TASK [k3s : Ensure the K3s binary is copied]"


def locked(boards: list[Board]) -> list[str]:
    return [one.name for one in boards if "lock.json" in one.exec("sh", "-c", f"ls {LOCK}", check=False)]


def test_lock_of_a_killed_run_is_over_and_a_second_run_beside_a_run_is_refused(boards: list[Board]) -> None:
    killed = run_playbook(
        LAB, "site.yml", "--skip-tags=gpu_verify", on_line=lambda line: line.startswith(MOMENT)
    )
    assert killed.returncode < 0, killed.output
    assert locked(boards) == [one.name for one in boards]

    beside: list[PlaybookRun] = []

    def second(line: str) -> None:
        if not beside and line.startswith("TASK [k3s : Check the K3s binary on the board]"):
            beside.append(run_playbook(LAB, "reset.yml", "--extra-vars=jetson_k3s_confirm=without-server"))

    run_playbook(LAB, "site.yml", on_line=second).checked()
    (refused,) = beside
    assert {(recap.failed, recap.changed) for recap in refused.recap.values()} == {(1, 0)}, refused.output
    assert "who runs site.yml since" in " ".join(refused.output.split())
    assert locked(boards) == []


def test_second_run_changes_nothing_and_check_mode_locks_nothing(boards: list[Board]) -> None:
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").unchanged()
    run_playbook(LAB, "site.yml", "--check").checked()
    assert locked(boards) == []


def test_board_that_another_computer_has_locked_is_free_after_a_restart(boards: list[Board]) -> None:
    server, agent = boards
    uptime = float(agent.exec("cut", "--delimiter= ", "--fields=1", "/proc/uptime"))
    lock = {
        "who": "anna@ops1",
        "playbook": "upgrade.yml",
        "since": "2026-11-22 10:32 UTC",
        "controller": "ops1",
        "process": "4711:1",
        "until": uptime + 3000,
    }
    agent.exec("sh", "-c", f"mkdir -p /run/jetson-k3s-lock && echo '{json.dumps(lock)}' > {LOCK}")
    run = run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify")
    assert (run.recap[agent.name].failed, run.recap[agent.name].changed) == (1, 0), run.output
    assert "locked by anna@ops1, who runs upgrade.yml since 2026-11-22 10:32 UTC" in " ".join(
        run.output.split()
    )
    assert run.recap[server.name].failed == 0, run.why
    assert locked(boards) == [agent.name]

    docker("kill", agent.container)
    board.start(agent)
    run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify").checked()
