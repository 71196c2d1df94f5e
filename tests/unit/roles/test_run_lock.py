# SPDX-License-Identifier: Apache-2.0
"""Two runs never change a board at the same time, and the lock of a run that is gone is over."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible import context
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import file_locks
from ansible_collections.jetson_k3s.cluster.plugins.modules import run_lock as lock
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import run_lock as runs

from tests.docs import CHECKOUT
from tests.unit.roles.places import COLLECTION
from tests.unit.roles.playing import Run, answer, play_text

NOW = 1000.0  # seconds of the board's clock
ANNA = {
    "who": "anna@ops1",
    "playbook": "site.yml",
    "since": "2026-11-22 10:32 UTC",
    "controller": "ops1 boot-1 pid:[1]",
    "process": "4711:100",
    "alive": ["4711:100", "4712:200"],
    "sees_all": False,
}
OTHER = {"playbook": "upgrade.yml", "since": "2026-11-22 10:50 UTC", "process": "4712:200"}
BERT = {**ANNA, **OTHER, "who": "bert@ops2", "controller": "ops2 boot-9 pid:[1]", "alive": ["4712:200"]}


def nothing() -> None:
    """There are no uploads."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A lock that does not exist, in a directory that does not exist."""
    return str(tmp_path / "jetson-k3s/lock.json")


def test_second_run_is_refused_until_the_board_is_released(path: str) -> None:
    assert lock.acquire(path, ANNA, NOW, nothing) == ""
    refused = lock.acquire(path, BERT, NOW + 600, nothing)
    assert "locked by anna@ops1, who runs site.yml since 2026-11-22 10:32 UTC." in refused
    assert "expires in at most 50 minutes" in refused
    assert refused.endswith(f"type on the board: sudo rm {path}")
    lock.release(path, BERT)
    assert lock.acquire(path, BERT, NOW + 600, nothing), "only its owner releases a board"
    lock.release(path, ANNA)
    assert lock.acquire(path, BERT, NOW + 600, nothing) == ""
    lock.release(path, ANNA)
    assert lock.acquire(path, ANNA, NOW + 600, nothing)


def test_run_that_locks_again_notices_another_run(path: str) -> None:
    for again in (False, True):  # a board that no run has had, and that only this one has had
        assert lock.acquire(path, ANNA, NOW, nothing, again) == ""
        lock.release(path, ANNA)
    assert lock.acquire(path, BERT, NOW + 1, nothing) == ""
    lock.release(path, BERT)
    refused = lock.acquire(path, ANNA, NOW + 2, nothing, again=True)
    assert "bert@ops2 has run upgrade.yml on this board since this run has checked it." in refused
    assert refused.endswith("This run changed nothing more on the board. Run the same command again")
    assert lock.acquire(path, ANNA, NOW + 2, nothing) == "", "a run that begins"
    lock.release(path, ANNA)
    # A run that was killed has not released the lock.
    assert lock.acquire(path, BERT, NOW + 3, nothing) == ""
    assert "bert@ops2 has run" in lock.acquire(path, ANNA, NOW + 3603, nothing, again=True)
    assert "bert@ops2 has run" in lock.acquire(path, ANNA, NOW + 4, nothing, again=True), "it goes on"


def test_lock_of_another_run_is_read(path: str) -> None:
    assert lock.other(path, ANNA, NOW) == ""
    lock.acquire(path, BERT, NOW, nothing)
    assert lock.other(path, BERT, NOW + 1) == ""
    assert lock.other(path, ANNA, NOW + 1) == "bert@ops2, who runs upgrade.yml since 2026-11-22 10:50 UTC"
    assert lock.other(path, ANNA, NOW + 3600) == "", "it has expired"


def test_local_user_cannot_stop_a_run(path: str) -> None:
    """Everybody can open a directory that everybody can enter, and lock it."""
    assert lock.acquire(path, BERT, NOW, nothing) == ""
    directory = os.open(Path(path).parent, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    lock.release(path, BERT)
    assert lock.acquire(path, ANNA, NOW, nothing) == ""
    os.close(directory)
    readable = [one for one in Path(path).parent.iterdir() if one.stat().st_mode & 0o077]
    assert {one.name for one in readable} <= {"lock.json", "last.json"}


def test_run_does_not_wait_without_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_locks, "WAIT_SECONDS", 0)
    lock.release(path, ANNA)
    (busy,) = Path(path).parent.iterdir()
    with busy.open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError) as failed:
            lock.acquire(path, ANNA, NOW, nothing)
    assert str(failed.value).startswith(f"{busy} has been locked by process {os.getpid()} for 0 s. ")


def test_run_renews_its_own_lock(path: str) -> None:
    lock.acquire(path, ANNA, NOW, nothing)
    assert lock.acquire(path, {**ANNA, "since": "2026-11-22 11:20 UTC"}, NOW + 3000, nothing) == ""
    refused = lock.acquire(path, BERT, NOW + 6000, nothing)
    assert "since 2026-11-22 10:32 UTC" in refused
    assert "at most 10 minutes" in refused
    lock.acquire(path, ANNA, NOW + 3000, nothing, seconds=9000)
    lock.acquire(path, ANNA, NOW + 3001, nothing)
    assert "at most 100 minutes" in lock.acquire(path, BERT, NOW + 6000, nothing), "it never expires earlier"


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
        # Another user sees it or not, and on another computer its number says nothing.
        ({**ANNA, **OTHER, "who": "bert@ops1", "alive": ["4712:200"]}, 1, False),
        ({**ANNA, **OTHER, "who": "bert@ops1", "alive": ["4712:200"], "sees_all": True}, 1, True),
        ({**ANNA, **OTHER, "controller": "ops1 boot-2 pid:[1]", "alive": ["4712:200"]}, 1, False),
    ],
)
def test_lock_ends_with_its_time_or_its_run(path: str, run: dict[str, Any], later: float, free: bool) -> None:
    lock.acquire(path, ANNA, NOW, nothing)
    assert (lock.acquire(path, run, NOW + later, nothing) == "") is free


def test_run_that_locks_a_board_removes_uploads_of_interrupted_runs_first(path: str) -> None:
    removed: list[bool] = []

    def remove() -> None:
        removed.append(Path(path).exists())

    lock.acquire(path, ANNA, NOW, remove)
    lock.acquire(path, ANNA, NOW + 1, remove)
    lock.acquire(path, BERT, NOW + 1, remove)
    assert removed == [False], "not the uploads of a run that goes on"
    lock.acquire(path, BERT, NOW + 3601, remove)
    assert removed == [False, True]


def process(proc: Path, pid: int, parent: int, started: int, *arguments: str) -> None:
    """A process as /proc shows it, with a name that is no help to who reads it."""
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_text("\0".join(arguments))
    fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} (a) (b) {' '.join(fields)}\n")


def test_run_is_the_process_that_its_workers_are_copies_of(tmp_path: Path) -> None:
    ansible = ("/usr/bin/python3", "/usr/bin/ansible-playbook", "site.yml")
    process(tmp_path, 1, 0, 1, "/sbin/init")
    process(tmp_path, 40, 1, 50, "bash")
    process(tmp_path, 41, 40, 60, *ansible)
    process(tmp_path, 42, 41, 70, *ansible)
    process(tmp_path, 43, 42, 80, *ansible)
    assert runs.identity(runs.run_process(tmp_path, 43)) == "41:60"
    assert runs.identity(runs.run_process(tmp_path, 41)) == "41:60"
    assert sorted(runs.alive(tmp_path) or []) == ["41:60", "42:70", "43:80"]
    assert runs.sees_all(tmp_path)
    (tmp_path / "1/cmdline").unlink()  # as with hidepid
    assert not runs.sees_all(tmp_path)


def test_controller_without_proc_says_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CLIARGS", {"args": ("playbooks/reset.yml",)})
    found = runs.run(datetime.datetime(2026, 11, 22, 10, 32, tzinfo=datetime.UTC), tmp_path / "none")
    assert found["alive"] is None
    assert (found["playbook"], found["since"]) == ("reset.yml", "2026-11-22 10:32 UTC")
    assert found["process"] == str(os.getppid())


def test_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000730000")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert runs.run(datetime.datetime.now(datetime.UTC))["who"].startswith(f"{os.getuid()}@")


# As the playbooks have it, with boards on which something fails.
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - ansible.builtin.import_role: {name: jetson_k3s.cluster.run_lock}
        - ansible.builtin.fail:
          when: inventory_hostname in fails
      always:
        - ansible.builtin.import_role: {name: jetson_k3s.cluster.run_lock, tasks_from: release_failed}
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.run_lock, tasks_from: release}
"""


def run(directory: Path, *fails: str) -> tuple[Run, list[Path]]:
    variables = {
        "fails": fails,
        "__run_lock_path": f"{directory}/lock-{{{{ inventory_hostname }}}}/lock.json",
        "__run_lock_uploads": str(directory),
    }
    ran = play_text(directory, PLAYBOOK, groups={"agent": ("one", "two")}, variables=variables, fails=True)
    return ran, list(directory.glob("lock-*/lock.json"))


def test_place_for_uploads_that_is_not_roots_alone_stops_the_run_before_its_first_change(
    tmp_path: Path,
) -> None:
    uploads = tmp_path / "jetson-k3s/uploads"
    uploads.mkdir(0o755, parents=True)
    ran, locks = run(tmp_path)
    assert f"{uploads} is a directory of user id {os.getuid()} with mode 0755" in ran.said
    assert locks == []


@pytest.mark.parametrize("fails", [["one"], ["one", "two"]], ids=["one board", "every board"])
def test_failed_run_releases_its_boards(tmp_path: Path, fails: list[str]) -> None:
    ran, locks = run(tmp_path, *fails)
    assert ran.stdout.count("failed=1") == len(fails), ran.stdout
    assert locks == []


@pytest.mark.parametrize("wait", [0, 300])
def test_run_waits_for_a_locked_board_as_long_as_it_may(tmp_path: Path, wait: int) -> None:
    path, until = tmp_path / "lock/lock.json", time.monotonic() + 30
    path.parent.mkdir()
    path.write_text(json.dumps({**BERT, "until": until}))
    text = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.run_lock}
"""
    variables = {"__run_lock_path": str(path), "__run_lock_uploads": str(tmp_path)}
    variables |= {"__run_lock_wait": str(wait), "__run_lock_seconds": "9000"}
    ran = play_text(tmp_path, text, variables=variables, fails=not wait)
    assert ("locked by bert@ops2" in ran.said) == (not wait)
    if wait:
        assert time.monotonic() > until
        assert json.loads(path.read_text())["until"] > time.monotonic() + 8000


RENEWAL = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.run_lock}
      when: locks
    - ansible.builtin.copy:
        content: "{{ lock }}"
        dest: "{{ __run_lock_path }}"
      when: lock is defined
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.run_lock, tasks_from: renew}
      vars: {__run_lock_step_seconds: 7200}
"""


def test_run_renews_its_lock_for_a_step_and_keeps_its_uploads(tmp_path: Path) -> None:
    uploads, path = tmp_path / "jetson-k3s/uploads", tmp_path / "lock/lock.json"
    variables = {"locks": True, "__run_lock_path": str(path), "__run_lock_uploads": str(tmp_path)}
    play_text(tmp_path, RENEWAL, variables=variables)
    assert json.loads(path.read_text())["until"] > time.monotonic() + 10_000
    # The lock had expired, and another run took the board while this one waited for a step.
    taken = {**BERT, "until": time.monotonic() + 60}
    ran = play_text(tmp_path, RENEWAL, variables=variables | {"lock": taken}, fails=True)
    assert "bert@ops2 has run upgrade.yml on this board since this run has checked it." in ran.said
    assert json.loads(path.read_text()) == taken
    # After a reboot of the board there is no lock, and the uploads of this run are there.
    uploads.mkdir(0o700, parents=True)
    path.unlink()
    arguments = {"path": str(path), "state": "renewed", "run": ANNA}
    assert answer("run_lock", arguments)["ansible_facts"]["run_lock_path"] == str(path)
    assert uploads.is_dir()


def test_run_without_a_lock_renews_none(tmp_path: Path) -> None:
    path = tmp_path / "lock/lock.json"
    play_text(tmp_path, RENEWAL, variables={"locks": False, "__run_lock_path": str(path)})
    assert not path.exists()


def test_role_that_fails_on_a_locked_board_releases_it(tmp_path: Path) -> None:
    tasks, lock = tmp_path / "roles/failing/tasks", tmp_path / "run/lock.json"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text(
        '- ansible.builtin.fail: {msg: "locked: {{ __run_lock_path is file }}"}\n'
    )
    text = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.run_lock, tasks_from: around}
      vars: {__run_lock_role: failing}
"""
    variables = {"__run_lock_path": str(lock), "__run_lock_uploads": str(tmp_path)}
    roles = f"{tmp_path}/roles"
    ran = play_text(tmp_path, text, variables=variables, fails=True, ANSIBLE_ROLES_PATH=roles)
    assert "locked: True" in ran.stdout
    assert not lock.exists()


PLAYBOOKS = sorted((CHECKOUT / "playbooks").glob("*.yml"))


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda path: path.stem)
def test_no_lock_is_held_where_a_batch_can_end_the_playbook(playbook: Path) -> None:
    """A play with `serial` locks and releases in the same block, and no play before it leaves a lock."""
    held = False
    for one in yaml.safe_load(playbook.read_text()):
        imported = [
            (role["name"], role.get("tasks_from"))
            for task in one.get("tasks", [])
            for part in [*task.get("block", [task]), *task.get("always", [])]
            for role in [part.get("ansible.builtin.import_role", {"name": ""})]
        ]
        locks = (f"{COLLECTION}.run_lock", None) in imported
        releases = (f"{COLLECTION}.run_lock", "release") in imported
        if "serial" in one:
            assert not held
            assert locks == releases
        held = (held or locks) and not releases
    assert not held
