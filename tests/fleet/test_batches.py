# SPDX-License-Identifier: Apache-2.0
"""Every playbook that works in batches stops at the first failure, and the same command goes on."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import pytest

from tests.ansible_core import NEWEST, OLDEST
from tests.fleet.fleet import LINES, POD_STARTED, REBOOTS, TIMEOUT_SECONDS, Fleet, Ran

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
EIGHT = tuple(f"a{number}" for number in range(1, 9))


def touched(ran: Ran) -> set[str]:
    """The boards on which more has run than the check of their facts."""
    return {line.split()[1] for line in ran.steps if not line.startswith("facts ")}


def assert_in_batches(ran: Ran, *batches: str) -> None:
    """Every board of a batch takes pods again before the first of the next batch is drained."""
    given = [batch.split() for batch in batches]
    assert set(ran.boards("drained")) == {board for batch in given for board in batch}
    for batch, following in itertools.pairwise(given):
        last = max(ran.steps.index(f"schedulable {board}") for board in batch)
        first = min(ran.steps.index(f"drained {board}") for board in following)
        assert last < first, ran.steps


@pytest.mark.parametrize("line", LINES)
def test_upgrade_stops_after_the_batch_of_a_board_that_fails_and_the_same_command_goes_on(
    tmp_path: Path, line: str
) -> None:
    fleet = Fleet(tmp_path, ["s1"], EIGHT, line)
    stopped = fleet.play("upgrade", broken={"a2": "verified"})
    assert stopped.returncode == 2, stopped.stdout
    assert stopped.boards("k3s")[:2] == ["s1", "a1"]
    assert touched(stopped) == {"s1", "a1", "a2", "a3"}, "the others of a batch go on"
    assert [name for name in (*EIGHT, "s1") if stopped.recap(name)["failed"]] == ["a2"]
    assert stopped.result == [
        "upgraded: a1, a3, s1",
        "not touched: a4, a5, a6, a7, a8",
        "failed: a2: not upgraded to v1.33.5+k3s1. It has",
        "  k3s-v1.33.4+k3s1 again and takes pods. What went wrong:",
        "  verified: verified is broken",
        "Repair the cause, then run the same command with --limit a2,a4,a5,a6,a7,a8. It goes on from here.",
    ]

    ended = fleet.play("upgrade")
    assert ended.returncode == 0, ended.stdout
    assert_in_batches(ended, "a2", "a4 a5", "a6 a7", "a8")
    assert ended.result == ["unchanged: a1, a3, s1", "upgraded: a2, a4, a5, a6, a7, a8"]


def test_board_to_which_the_new_k3s_does_not_come_keeps_its_pods(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["s1"], ["a1"], "2.16")
    stopped = fleet.play("upgrade", broken={"a1": "brought"})
    assert stopped.returncode == 2, stopped.stdout
    assert stopped.boards("drained") == ["s1"]
    assert "failed: a1: not upgraded to v1.33.5+k3s1. It has" in stopped.result


@pytest.mark.acceptance
@pytest.mark.parametrize("line", (OLDEST, NEWEST))
def test_board_that_is_lost_stops_the_upgrade(tmp_path: Path, line: str) -> None:
    ran = Fleet(tmp_path, ["s1"], EIGHT, line).play("upgrade", lost={"a2": "k3s"})
    assert ran.returncode in (2, 4), ran.stdout
    assert ran.recap("a2")["unreachable"] == 1
    assert touched(ran) == {"s1", "a1", "a2", "a3"}
    assert ran.result == [
        "upgraded: a1, a3, s1",
        "not touched: a4, a5, a6, a7, a8",
        "failed: a2: does not answer any more (k3s : k3s)",
        "Cordoned until a run has finished with them: a2.",
        "Repair the cause, then run the same command with --limit a2,a4,a5,a6,a7,a8. It goes on from here.",
    ]


@pytest.mark.acceptance
def test_lost_server_ends_the_playbook_and_the_result_is_shown(tmp_path: Path) -> None:
    ran = Fleet(tmp_path, ["s1", "s2", "s3"], ["a1"]).play("upgrade", lost={"s2": "k3s"})
    assert ran.returncode in (2, 4), ran.stdout
    assert touched(ran) == {"s1", "s2"}
    assert ran.result == [
        "upgraded: s1",
        "not touched: a1, s3",
        "failed: s2: does not answer any more (k3s : k3s)",
        "Cordoned until a run has finished with them: s2.",
        "Repair the cause, then run the same command with --limit a1,s2,s3. It goes on from here.",
    ]


@pytest.mark.parametrize(
    ("playbook", "step", "line", "done"),
    [
        ("reboot", "reboot", "2.16", "rebooted: a1"),
        pytest.param("os_update", "updated", NEWEST, "rebooted: a1", marks=pytest.mark.acceptance),
        pytest.param("power_mode", "reboot", "2.16", "done: a1", marks=pytest.mark.acceptance),
    ],
)
def test_no_further_board_is_touched(tmp_path: Path, playbook: str, step: str, line: str, done: str) -> None:
    alone = {"a3", "a4", "s1"}
    fleet = Fleet(tmp_path, ["s1"], ["a1", "a2", "a3", "a4"], line)
    stopped = fleet.play(playbook, broken={"a2": step})
    assert stopped.returncode == 2, stopped.stdout
    assert touched(stopped) & alone == set()
    assert (stopped.result[0], stopped.result[1]) == (done, f"not touched: {', '.join(sorted(alone))}")
    assert step in "\n".join(stopped.result)


@pytest.mark.acceptance
@pytest.mark.parametrize("line", LINES)
def test_failed_restart_leaves_other_boards_their_settings_and_they_are_verified(
    tmp_path: Path, line: str
) -> None:
    fleet = Fleet(tmp_path, ["s1"], ["a1", "a2", "a3", "a4"], line)
    play = functools.partial(fleet.play, "site", pending=["a1", "a2", "a3"])
    serial = "--extra-vars={jetson_k3s_serial: [2, 1]}"
    stopped = play(serial, broken={"a1": "docker-restart"}, nvidia_docker_restart_waits=True)
    assert stopped.returncode == 2, stopped.stdout
    assert set(stopped.boards("docker-restart")) == {"s1", "a1", "a2"}, "one batch, after the server"
    assert set(stopped.boards("verified")) == {"s1", "a2", "a3", "a4"}
    assert [name for name in ("s1", "a1", "a2", "a3", "a4") if stopped.recap(name)["failed"]] == ["a1"]
    assert stopped.result == [
        "restarted: a2, s1",
        "not restarted, old settings kept: a3, a4",
        "failed: a1: a changed setting needs a restart of Docker or K3s, and that went wrong. The reason:",
        "  docker-restart: docker-restart is broken",
        "Repair the cause, then run the same command again. It goes on from here.",
    ]
    assert "schedulable a1" in stopped.steps


def test_nothing_is_upgraded_without_the_backup(tmp_path: Path) -> None:
    """Also while another server is down: then not all servers have failed, and Ansible goes on."""
    fleet = Fleet(tmp_path, ["s1", "s2", "s3"], ["a1"], "2.16")
    ran = fleet.play("upgrade", lost={"s3": "facts"}, broken={"s1": "backup"})
    assert ran.returncode in (2, 4), ran.stdout
    assert touched(ran) == {"s1"}
    assert ran.result[:2] == ["not touched: a1, s2", "failed: s1: backup: backup is broken"]


@pytest.mark.parametrize(
    ("playbook", "how", "line"),
    [
        ("rotate_token", "broken", "2.16"),
        pytest.param("rotate_ca", "broken", "2.16", marks=pytest.mark.acceptance),
        pytest.param("rotate_ca", "lost", NEWEST, marks=pytest.mark.acceptance),
    ],
)
def test_failed_rotation_reaches_no_other_board(tmp_path: Path, playbook: str, how: str, line: str) -> None:
    fleet = Fleet(tmp_path, ["s1", "s2", "s3"], ["a1"], line)
    faults: dict[str, dict[str, str]] = {"broken": {}, "lost": {}} | {how: {"s1": "rotated"}}
    ran = fleet.play(playbook, broken=faults["broken"], lost=faults["lost"])
    assert ran.returncode in (2, 4), ran.stdout
    assert touched(ran) == {"s1"}
    assert "known s1 quorum" in ran.steps, "K3s restarts there"
    assert "PLAY [Prepare the boards]" not in ran.stdout, "site.yml would follow"
    assert ran.result[0] == "not touched: a1, s2, s3"
    assert ran.result[-1] == "Repair the cause, then run the same command again. It goes on from here."


def test_no_board_reboots_into_a_power_mode_without_the_confirmation(tmp_path: Path) -> None:
    ran = Fleet(tmp_path, ["s1"], ["a1"], "2.16").play("power_mode", jetson_k3s_confirm=[])
    assert ran.returncode == 2, ran.stdout
    assert not {step.split()[0] for step in ran.steps} & {"drained", "reboot"}, ran.steps
    assert "Allow it with `-e jetson_k3s_confirm=reboot`" in ran.stdout


@pytest.mark.acceptance
def test_check_mode_names_no_result_and_touches_nothing(tmp_path: Path) -> None:
    def state() -> dict[Path, bytes]:
        found = (path for board in ("s1", "a1") for path in (tmp_path / board).rglob("*"))
        return {path: path.read_bytes() for path in found if path.is_file()}

    fleet = Fleet(tmp_path, ["s1"], ["a1"])
    before = state()
    for playbook in ("upgrade", "power_mode"):
        ran = fleet.play(playbook, "--check", locks=True)
        assert (ran.returncode, ran.steps, ran.result) == (0, [], []), ran.stdout
        assert (state(), fleet.locked()) == (before, [])


@pytest.mark.parametrize("line", (OLDEST, NEWEST))
def test_verification_reboots_no_board_after_one_that_does_not_come_back(tmp_path: Path, line: str) -> None:
    fleet = Fleet(tmp_path, ["s1"], EIGHT[:4], line)
    ran = fleet.play("verify", *REBOOTS, broken={"a2": "reboot"}, __gpu_verify_state=POD_STARTED)
    assert ran.returncode == 2, ran.stdout
    assert ran.boards("before_reboot") == ["a1", "a2"]
    assert ran.boards("rebooted") == ["a1", "a2"], "what became of the pod is asked in any case"
    assert set(ran.boards("reported")) == {"s1", *EIGHT[:4]}
    assert ran.result == [
        "verified: a1",
        "not touched: a3, a4, s1",
        "failed: a2: reboot is broken",
        "Repair the cause, then run the same command with --limit a2,a3,a4,s1. It goes on from here.",
    ]


def test_verification_reboots_only_by_the_owners_word(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, ["s1"], ["a1"])
    for words in ((), REBOOTS[:1], REBOOTS[1:], (*REBOOTS, "--check")):
        ran = fleet.play("verify", *words, __gpu_verify_state=POD_STARTED)
        assert ran.returncode == 0, ran.stdout
        assert ran.boards("reboot") == [], words
