# SPDX-License-Identifier: Apache-2.0
"""Servers go down one at a time, in the right order, and only if etcd keeps its majority."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.ansible_core import NEWEST
from tests.fleet.fleet import LINES, POD_STARTED, REBOOTS, TIMEOUT_SECONDS, Fleet, Ran
from tests.unit.roles.preflight_facts import with_facts

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
SERVERS = ("s1", "s2", "s3")
# Steps that take a server down.
DOWN = ("k3s", "reboot", "docker-restart", "rotated", "updated", "forgotten")


def assert_majority_was_checked(ran: Ran) -> list[str]:
    """Give the servers that went down, in order: the last check of a majority was for the same server."""
    down: list[str] = []
    checked = ""
    for line in ran.steps:
        step, board, *more = line.split()
        if step in DOWN and board in SERVERS:
            assert board in (checked, board if step == "forgotten" and "quorum" in more else ""), ran.steps
            down.append(board)
        elif more == ["quorum"]:
            checked = board
    return list(dict.fromkeys(down))


@pytest.mark.parametrize(
    ("playbook", "order", "line", "arguments"),
    [
        pytest.param("upgrade", ["s1", "s2", "s3"], NEWEST, (), marks=pytest.mark.acceptance),
        pytest.param(
            "os_update", ["s3", "s2", "s1"], NEWEST, (), marks=pytest.mark.acceptance
        ),  # by reboot.yml
        pytest.param("power_mode", ["s3", "s2", "s1"], "2.16", (), marks=pytest.mark.acceptance),
        pytest.param("verify", ["s3", "s2", "s1"], "2.16", REBOOTS, marks=pytest.mark.acceptance),
        pytest.param("site", ["s1", "s2", "s3"], "2.16", ("--tags=k3s",), marks=pytest.mark.acceptance),
        ("forget", ["s2", "s3"], NEWEST, ("--limit=s2,s3,a1",)),
    ],
)
def test_majority_is_checked_before_each_server_goes_down(
    tmp_path: Path, playbook: str, order: list[str], line: str, arguments: tuple[str, ...]
) -> None:
    fleet = Fleet(tmp_path, SERVERS, ["a1"], line)
    ran = fleet.play(playbook, *arguments, pending=[*SERVERS, "a1"], __gpu_verify_state=POD_STARTED)
    assert ran.returncode == 0, ran.stdout
    assert assert_majority_was_checked(ran) == order
    agents = [line for line in ran.steps if line.split()[1] == "a1" and "quorum" in line]
    assert agents == []


@pytest.mark.parametrize("etcd", [True, pytest.param(False, marks=pytest.mark.acceptance)])
def test_server_restarts_when_new_ones_have_joined_its_etcd(tmp_path: Path, etcd: bool) -> None:
    """Of two members none can be restarted. From SQLite a restart brings the etcd that they join."""
    fleet = Fleet(tmp_path, SERVERS, ["a1"])
    facts = with_facts()
    facts["k3s"]["etcd"] = etcd
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    ran = fleet.play("site", "--tags=k3s", pending=["s1"])
    assert ran.returncode == 0, ran.stdout
    assert list(dict.fromkeys(ran.boards("k3s"))) == (["s2", "s3", "s1"] if etcd else list(SERVERS)) + ["a1"]


@pytest.mark.parametrize(
    ("playbook", "kept"), [("upgrade", "a1, s3"), pytest.param("reboot", "s1", marks=pytest.mark.acceptance)]
)
def test_server_that_etcd_needs_stays_up_and_the_run_stops(tmp_path: Path, playbook: str, kept: str) -> None:
    fleet = Fleet(tmp_path, SERVERS, ["a1"], "2.16")
    ran = fleet.play(playbook, broken={"s2": "drained"})
    assert ran.returncode == 2, ran.stdout
    assert not {f"{step} s2" for step in ("k3s", "reboot")} & {" ".join(one.split()[:2]) for one in ran.steps}
    assert f"not touched: {kept}" in ran.result
    assert "drained is broken" in "\n".join(ran.result)
    assert not (tmp_path / "s2/cordoned").exists(), "it takes pods again"


def lock(fleet: Fleet, board: str, seconds: float) -> None:
    """Another controller's run has locked the board."""
    anna = {"who": "anna@ops1", "playbook": "upgrade.yml", "since": "2026-11-22 10:32 UTC"}
    ours = {"controller": "ops1 boot-1 pid:[1]", "process": "4711:100", "until": time.monotonic() + seconds}
    path = fleet.root / board / "lock/lock.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(anna | ours))


@pytest.mark.acceptance
@pytest.mark.parametrize("line", LINES)
def test_server_stays_up_while_another_run_may_take_one_down(tmp_path: Path, line: str) -> None:
    fleet = Fleet(tmp_path, SERVERS, ["a1"], line)
    lock(fleet, "s2", 600)
    # It has locked its own server before it asks, and so has the other run.
    ran = fleet.play("reboot", "--limit=s3", locks=True)
    assert ran.returncode == 2, ran.stdout
    assert ran.boards("reboot") == []
    (why,) = (line for line in ran.result if line.startswith("failed: s3: has not rebooted"))
    assert "this server stays up, because another run may take down s2, which is locked by anna@ops1" in why
    assert fleet.locked() == ["s2"]
    lock(fleet, "s2", -1)
    assert fleet.play("reboot", "--limit=s3", locks=True).boards("reboot") == ["s3"]


@pytest.mark.parametrize("line", LINES)
def test_server_that_does_not_answer_over_ssh_counts_as_down(tmp_path: Path, line: str) -> None:
    fleet = Fleet(tmp_path, SERVERS, ["a1"], line)
    fleet.groups["server"]["s2"] = {"ansible_connection": "gone"}
    ran = fleet.play("reboot", "--limit=s3", locks=True)
    assert ran.boards("reboot") == ["s3"], ran.stdout
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert json.loads((tmp_path / "s3/servers-drained").read_text()) == {"s1": boot, "s2": ""}


@pytest.mark.parametrize("line", LINES)
def test_run_with_a_limit_uses_a_server_that_answers(tmp_path: Path, line: str) -> None:
    fleet = Fleet(tmp_path, SERVERS, ["a1"], line)
    fleet.groups["server"]["s1"] = {"ansible_connection": "gone"}
    ran = fleet.play("reboot", "--limit=a1")
    assert ran.boards("reboot") == ["a1"], ran.stdout
    assert "s1 does not answer, so this run uses s2 for kubectl." in ran.stdout
    for name in ("s2", "s3"):
        fleet.groups["server"][name] = {"ansible_connection": "gone"}
    ran = fleet.play("reboot", "--limit=a1")
    assert (ran.returncode, ran.boards("reboot")) == (2, []), ran.stdout
    words = (
        "None of the servers s1, s2, s3 answers, so this run has no server for kubectl. Nothing was changed."
    )
    assert words in " ".join(ran.stdout.split())
