# SPDX-License-Identifier: Apache-2.0
"""A lock ends with its run, also where Ansible ends the playbook, and another run is noticed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.ansible_core import NEWEST
from tests.fleet.fleet import LINES, TIMEOUT_SECONDS, Fleet

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)
SERVERS, AGENTS = ("s1", "s2"), ("a1", "a2")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(
    ("how", "left"), [("broken", []), pytest.param("lost", ["s1"], marks=pytest.mark.acceptance)]
)
def test_playbook_that_ends_in_a_play_with_batches_leaves_no_lock(
    tmp_path: Path, line: str, how: str, left: list[str]
) -> None:
    """A board that is lost cannot be released."""
    fleet = Fleet(tmp_path, SERVERS, AGENTS, line)
    faults: dict[str, dict[str, str]] = {"broken": {}, "lost": {}} | {how: {"s1": "k3s"}}
    ran = fleet.play("site", locks=True, broken=faults["broken"], lost=faults["lost"])
    assert ran.returncode in (2, 4), ran.stdout
    assert "Join the agents" not in ran.stdout
    assert ran.boards("docker") and not set(ran.boards("k3s")) - {"s1"}
    assert fleet.locked() == left


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("playbook", "broken", "untouched"),
    [
        ("upgrade", {"a1": "k3s"}, {"a2"}),
        ("site", {"a1": "plugin"}, set()),
    ],
)
def test_run_that_ends_leaves_no_lock(
    tmp_path: Path, playbook: str, broken: dict[str, str], untouched: set[str]
) -> None:
    fleet = Fleet(tmp_path, SERVERS, AGENTS)
    ran = fleet.play(playbook, locks=True, broken=broken)
    assert ran.returncode == (2 if broken else 0), ran.stdout
    assert fleet.locked() == []
    locked = {path.parents[1].name for path in tmp_path.glob("*/lock/last.json")}
    assert locked == {*SERVERS, *AGENTS} - untouched


@pytest.mark.parametrize("line", LINES)
def test_board_without_work_is_in_no_batch_and_stays_locked(tmp_path: Path, line: str) -> None:
    fleet = Fleet(tmp_path, SERVERS, AGENTS, line)
    ran = fleet.play("site", "--skip-tags=gpu_verify", locks=True, settled=[*SERVERS, *AGENTS])
    assert ran.returncode == 0, ran.stdout
    assert (ran.boards("k3s"), set(ran.boards("plugin"))) == ([], {*SERVERS, *AGENTS})
    assert fleet.locked() == []
    some = fleet.play("site", "--skip-tags=gpu_verify", locks=True, settled=["s1", "a1"])
    assert (some.returncode, some.boards("k3s")) == (0, ["s2", "a2"]), some.stdout
    assert fleet.locked() == []


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("line", "moment"), [("2.16", "Prepare the boards"), (NEWEST, "Deploy the device plugin")]
)
def test_lock_of_a_killed_run_shows_its_owner_elsewhere_and_is_over_on_its_controller(
    tmp_path: Path, line: str, moment: str
) -> None:
    fleet = Fleet(tmp_path, SERVERS, AGENTS, line)

    def kill(text: str, process: subprocess.Popen[str]) -> None:
        if f"  {moment}: " in text:
            process.kill()

    # Without work they stay locked until the end.
    killed = fleet.play("site", locks=True, on_line=kill, settled=[*SERVERS, *AGENTS])
    assert killed.returncode == -9, killed.stdout
    assert set(fleet.locked()) == {*SERVERS, *AGENTS}

    path = tmp_path / "a1/lock/lock.json"
    own = fleet.lock("a1")
    path.write_text(json.dumps(own | {"controller": "ops1 boot-1 pid:[1]"}))
    refused = fleet.play("reboot", "--limit=a1", locks=True)
    assert refused.boards("reboot") == []
    said = " ".join(refused.stdout.split())
    assert f"locked by {own['who']}, who runs site.yml since {own['since']}. Nothing was changed" in said
    assert re.search(r"the lock expires in at most (59|60) minutes", said)

    path.write_text(json.dumps(own))
    assert fleet.play("reboot", "--limit=a1", locks=True).boards("reboot") == ["a1"]
    assert "a1" not in fleet.locked()


@pytest.mark.acceptance
def test_board_that_another_run_has_locked_in_between_is_left_alone(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, SERVERS, AGENTS)
    anna = {"who": "anna@ops1", "playbook": "reset.yml", "since": "2026-11-22 10:32 UTC"}
    anna |= {"controller": "ops1 boot-1 pid:[1]", "process": "4711:100"}

    def reset(text: str, _process: subprocess.Popen[str]) -> None:
        if "Install the K3s servers: s2" in text:
            (tmp_path / "a1/lock/last.json").write_text(json.dumps(anna | {"until": 0}))

    ran = fleet.play("site", locks=True, on_line=reset)
    assert ran.returncode == 2, ran.stdout
    said = " ".join(ran.stdout.split())
    assert "anna@ops1 has run reset.yml on this board since this run has checked it." in said
    assert (ran.boards("k3s"), set(ran.boards("plugin"))) == (["s1", "s2", "a2"], {"s1", "s2", "a2"})
    assert fleet.locked() == []
