# SPDX-License-Identifier: Apache-2.0
"""Two runs never change a board at the same time, and a run that is gone holds none."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible import context  # type: ignore[import-untyped] # ansible-core has no types

from tests.docs import CHECKOUT
from tests.unit.roles.conftest import Load
from tests.unit.roles.playing import play

NOW = 1000.0  # seconds of the board's clock
ANNA = {
    "who": "anna@ops1",
    "playbook": "site.yml",
    "since": "2026-11-22 10:32 UTC",
    "controller": "ops1 boot-1 pid:[1]",
    "process": "4711:100",
    "alive": ["4711:100", "4712:200"],
}
OTHER = {"playbook": "upgrade.yml", "since": "2026-11-22 10:50 UTC", "process": "4712:200"}
BERT = {**ANNA, **OTHER, "who": "bert@ops2", "controller": "ops2 boot-9 pid:[1]", "alive": ["4712:200"]}


def nothing() -> None:
    """There are no uploads."""


@pytest.fixture
def lease(load: Load) -> ModuleType:
    return load("board_lease/library/board_lease.py")


@pytest.fixture
def runs(load: Load) -> ModuleType:
    return load("board_lease/filter_plugins/board_lease.py")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A lease that nobody has, in a directory that is not there yet."""
    return str(tmp_path / "jetson-k3s/lease.json")


def test_second_run_is_told_who_holds_the_board_until_it_is_given_back(lease: ModuleType, path: str) -> None:
    assert lease.hold(path, ANNA, NOW, nothing) == ""
    refused = lease.hold(path, BERT, NOW + 600, nothing)
    assert "held by anna@ops1, who runs site.yml since 2026-11-22 10:32 UTC." in refused
    assert "free in at most 50 minutes, and for anna@ops1 at once" in refused
    lease.give_back(path, BERT)
    assert lease.hold(path, BERT, NOW + 600, nothing), "only its owner gives a board back"
    lease.give_back(path, ANNA)
    assert lease.hold(path, BERT, NOW + 600, nothing) == ""
    lease.give_back(path, ANNA)
    assert lease.hold(path, ANNA, NOW + 600, nothing)


def test_run_takes_its_own_lease_again_and_it_begins_anew(lease: ModuleType, path: str) -> None:
    lease.hold(path, ANNA, NOW, nothing)
    assert lease.hold(path, {**ANNA, "since": "2026-11-22 11:20 UTC"}, NOW + 3000, nothing) == ""
    refused = lease.hold(path, BERT, NOW + 6000, nothing)
    assert "since 2026-11-22 10:32 UTC" in refused
    assert "at most 10 minutes" in refused


@pytest.mark.parametrize(
    ("run", "later", "free"),
    [
        (BERT, 3599, False),
        (BERT, 3600, True),
        # The same user of the same controller, whose other run is there, has ended, or cannot be known.
        ({**ANNA, **OTHER}, 1, False),
        ({**ANNA, **OTHER, "alive": ["4712:200"]}, 1, True),
        ({**ANNA, **OTHER, "alive": ["4711:999", "4712:200"]}, 1, True),
        ({**ANNA, **OTHER, "alive": None}, 1, False),
        # Another user may not see it, and on another computer its number says nothing.
        ({**ANNA, **OTHER, "who": "bert@ops1", "alive": ["4712:200"]}, 1, False),
        ({**ANNA, **OTHER, "controller": "ops1 boot-2 pid:[1]", "alive": ["4712:200"]}, 1, False),
    ],
)
def test_lease_ends_with_its_time_or_its_run(
    lease: ModuleType, path: str, run: dict[str, Any], later: float, free: bool
) -> None:
    lease.hold(path, ANNA, NOW, nothing)
    assert (lease.hold(path, run, NOW + later, nothing) == "") is free


def test_run_that_takes_the_lease_removes_uploads_of_interrupted_runs_first(
    lease: ModuleType, path: str
) -> None:
    removed: list[bool] = []

    def remove() -> None:
        removed.append(Path(path).exists())

    lease.hold(path, ANNA, NOW, remove)
    lease.hold(path, ANNA, NOW + 1, remove)
    lease.hold(path, BERT, NOW + 1, remove)
    assert removed == [False], "not the uploads of a run that goes on"
    lease.hold(path, BERT, NOW + 3601, remove)
    assert removed == [False, True]


def process(proc: Path, pid: int, parent: int, started: int, *arguments: str) -> None:
    """A process as /proc shows it, with a name that is no help to who reads it."""
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_text("\0".join(arguments))
    fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a) (b) {' '.join(fields)}\n")


def test_run_is_the_process_that_its_workers_are_copies_of(runs: ModuleType, tmp_path: Path) -> None:
    ansible = ("/usr/bin/python3", "/usr/bin/ansible-playbook", "site.yml")
    process(tmp_path, 1, 0, 1, "/sbin/init")
    process(tmp_path, 40, 1, 50, "bash")
    process(tmp_path, 41, 40, 60, *ansible)
    process(tmp_path, 42, 41, 70, *ansible)
    process(tmp_path, 43, 42, 80, *ansible)
    assert runs.token(runs.of_run(tmp_path, 43)) == "41:60"
    assert runs.token(runs.of_run(tmp_path, 41)) == "41:60"
    assert set(runs.alive(tmp_path)) == {"41:60", "42:70", "43:80"}


def test_controller_without_proc_says_what_it_can(
    runs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "CLIARGS", {"args": ("playbooks/reset.yml",)})
    found = runs.run(datetime.datetime(2026, 11, 22, 10, 32, tzinfo=datetime.UTC), tmp_path / "none")
    assert found["alive"] is None
    assert (found["playbook"], found["since"]) == ("reset.yml", "2026-11-22 10:32 UTC")
    assert found["process"] == str(os.getppid())


def test_user_without_a_name_is_a_number(runs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000730000")

    monkeypatch.setattr(runs.getpass, "getuser", nobody)
    assert runs.run(datetime.datetime.now(datetime.UTC))["who"].startswith(f"{os.getuid()}@")


# As the playbooks have it, with a change that waits until the test lets it go on, or fails.
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - ansible.builtin.import_role: {name: board_lease}
        - name: Change the board for long
          ansible.builtin.command: {argv: [cat, "{{ go_on }}"]}
          when: waits | default(false)
        - ansible.builtin.fail:
          when: fails | default([]) is contains(inventory_hostname)
      always:
        - ansible.builtin.import_role: {name: board_lease, tasks_from: give_back_failed.yml}
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: board_lease, tasks_from: give_back.yml}
"""


class Fleet:
    """Two boards that are this machine, each with a lease of its own."""

    def __init__(self, directory: Path) -> None:
        self.go_on = directory / "go-on"
        os.mkfifo(self.go_on)
        self.leases = {name: directory / f"{name}.json" for name in ("one", "two")}
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "go_on": str(self.go_on),
        }
        self.inventory, self.playbook = directory / "inventory.yml", directory / "change.yml"
        inventory = {"all": {"hosts": dict.fromkeys(self.leases), "vars": variables}}
        self.inventory.write_text(yaml.safe_dump(inventory))
        self.playbook.write_text(PLAYBOOK)
        self.uploads = directory / "jetson-k3s/uploads"
        # What a role has among its `vars` gives way to extra variables only.
        lease = f"__board_lease_path={directory}/{{{{inventory_hostname}}}}.json"
        self.here = f"--extra-vars={lease} __board_lease_uploads={directory}"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A run over both boards."""
        return play(self.inventory, self.playbook, self.here, *arguments)

    @contextmanager
    def changing(self) -> Iterator[subprocess.Popen[str]]:
        """A run that holds the board `one`, and goes on afterwards."""
        running = subprocess.Popen(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                f"--inventory={self.inventory}",
                self.here,
                "--limit=one",
                "--extra-vars={waits: true}",
                self.playbook,
            ],
            cwd=CHECKOUT,
            env=os.environ | {"ANSIBLE_ROLES_PATH": f"{CHECKOUT}/roles"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert running.stdout
        said = []
        for line in running.stdout:
            said.append(line)
            if line.startswith("TASK [Change the board"):
                break
        else:
            raise AssertionError("".join(said))
        # It is opened when its task opens it, and closed even if the test has failed.
        with self.go_on.open("w"):
            yield running

    @property
    def held(self) -> list[str]:
        return [name for name, path in self.leases.items() if path.exists()]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_run_beside_another_is_refused_and_goes_on_where_it_may(fleet: Fleet) -> None:
    with fleet.changing() as first:
        second = fleet.run()
        said = " ".join(second.stdout.split())
        assert "who runs change.yml since" in said
        assert re.search(r"one : ok=\d changed=0 unreachable=0 failed=1", said), said
        assert re.search(r"two : ok=\d changed=0 unreachable=0 failed=0", said), said
        assert fleet.held == ["one"]
        assert fleet.run("--check").returncode == 0, "who changes nothing is not refused"
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert fleet.held == []


def test_killed_run_holds_nothing_for_the_next_of_the_same_user(fleet: Fleet) -> None:
    with fleet.changing() as first:
        assert json.loads(fleet.leases["one"].read_text())["process"].startswith(f"{first.pid}:")
        fleet.uploads.mkdir(0o700, parents=True)
        (fleet.uploads / "archive").touch()
        first.kill()
        first.wait(60)
        assert fleet.held == ["one"]
        again = fleet.run()
    assert again.returncode == 0, again.stdout
    assert fleet.held == []
    assert not fleet.uploads.exists()


def test_place_for_uploads_that_is_not_roots_alone_stops_the_run_before_its_first_change(
    fleet: Fleet,
) -> None:
    fleet.uploads.mkdir(0o755, parents=True)
    run = fleet.run()
    assert run.returncode != 0
    assert f"{fleet.uploads} is a directory of user id {os.getuid()} with mode 0755" in " ".join(
        run.stdout.split()
    )
    assert fleet.held == []


@pytest.mark.parametrize("fails", [["one"], ["one", "two"]], ids=["one board", "every board"])
def test_failed_run_gives_its_boards_back(fleet: Fleet, fails: list[str]) -> None:
    run = fleet.run("--extra-vars", json.dumps({"fails": fails}))
    assert run.stdout.count("failed=1") == len(fails), run.stdout
    assert fleet.held == []


CHANGING = (
    "site.yml",
    "upgrade.yml",
    "reset.yml",
    "forget.yml",
    "jtop.yml",
    "monitoring.yml",
    "power_mode.yml",
    "rotate_token.yml",
    "rotate_ca.yml",
)


@pytest.mark.parametrize("playbook", CHANGING)
def test_playbook_that_changes_boards_gives_them_back_in_every_play(playbook: str) -> None:
    text = (CHECKOUT / "playbooks" / playbook).read_text()
    plays = yaml.safe_load(text)
    for one in plays:
        for block in (task for task in one.get("tasks", []) if "block" in task):
            (last,) = block["always"]
            assert last["ansible.builtin.import_role"]["tasks_from"].startswith("give_back")
    assert text.count("name: board_lease\n") > text.count("tasks_from: give_back"), "and holds them before"
