# SPDX-License-Identifier: Apache-2.0
"""drift.yml reports differences, and boards that it could not compare. Its own plays run with stub roles."""

import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.places import COLLECTION, stub_collection
from tests.unit.roles.playing import Run as Played
from tests.unit.roles.playing import play_in

PLAYBOOKS = CHECKOUT / "playbooks"
PLAYS = PLAYBOOKS / "comparison/plays.yml"
CODE = runpy.run_path(str(CHECKOUT / "plugins/callback/drift.py"))
# Steps of site.yml that drift.yml does not compare: locks, restarts in batches, and the verification.
ELSEWHERE = {f"{COLLECTION}.{name}" for name in ("run_lock", "rollout", "gpu_verify")}

PING = "- ansible.builtin.ping:\n"
STUBS = {
    "jetson_facts/tasks/main.yml": PING,
    "preflight/tasks/controller.yml": PING,
    "preflight/tasks/main.yml": """\
- ansible.builtin.fail: {msg: "preflight found 1 problem\\nand more"}
  when: inventory_hostname in broken
""",
    "nvidia_docker/tasks/runtime.yml": PING,
    "nvidia_docker/tasks/main.yml": """\
- name: Ensure daemon.json
  ansible.builtin.copy:
    content: "{{ wanted }}\\n"
    dest: "{{ there }}/{{ inventory_hostname }}.json"
    mode: "0600"
  notify: Restart Docker
- name: Check the check mode that the role reads
  ansible.builtin.assert: {that: ansible_check_mode}
""",
    "nvidia_docker/handlers/main.yml": """\
- name: Restart Docker
  ansible.builtin.file: {path: "{{ there }}/restarted", state: touch, mode: "0600"}
""",
    "image_supply/tasks/main.yml": PING,
    "k3s/tasks/main.yml": """\
- name: Ensure K3s' files
  ansible.builtin.copy: {content: "{{ item }}\\n", dest: "{{ there }}/{{ item }}", mode: "0600"}
  loop: [one, two]
- name: Ensure the token
  ansible.builtin.copy: {content: "{{ token }}\\n", dest: "{{ there }}/token", mode: "0600"}
  no_log: true
""",
    "gpu_device_plugin/tasks/main.yml": """\
- name: Ensure the DaemonSet
  ansible.builtin.copy: {content: "{{ wanted }}\\n", dest: "{{ there }}/daemonset", mode: "0600"}
  run_once: true
""",
}
RIGHT = {
    "a.json": "good",
    "b.json": "good",
    "one": "one",
    "two": "two",
    "token": "secret",
    "daemonset": "good",
}
TASKS = {
    "docker": "nvidia_docker : Ensure daemon.json",
    "restart": "nvidia_docker : Restart Docker",
    "files": "k3s : Ensure K3s' files",
    "token": "k3s : Ensure the token",
    "daemonset": "gpu_device_plugin : Ensure the DaemonSet",
}
Run = Callable[..., Played]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The files of both boards, as the inventory has them."""
    directory = tmp_path / "there"
    directory.mkdir()
    for name, content in RIGHT.items():
        (directory / name).write_text(f"{content}\n")
        (directory / name).chmod(0o600)
    return directory


@pytest.fixture
def drift(tmp_path: Path, there: Path) -> Run:
    roles = stub_collection(tmp_path) / "roles"
    for path, text in STUBS.items():
        file = roles / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(PLAYBOOKS, tmp_path / "playbooks", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*arguments: str, hosts: dict[str, Any] | None = None, **variables: Any) -> Any:
        settings = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "broken": [],
            "there": str(there),
            "wanted": "good",
            "token": "secret",
            **variables,
        }
        inventory = {"k3s_cluster": {"hosts": hosts or {"a": None, "b": None}, "vars": settings}}
        (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
        return play_in(
            tmp_path,
            tmp_path / "inventory.yml",
            tmp_path / "playbooks/drift.yml",
            "--extra-vars=jetson_k3s_drift_file=drift.json",  # of the directory where the command is typed
            *arguments,
            ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "collections"),
        )

    return run


def found(directory: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((directory / "drift.json").read_text())
    return written


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in directory.iterdir()}


def rows(told: str, board: str, text: str) -> list[str]:
    _, _, table = told.partition("WHAT DIFFERS")
    return [line for line in table.splitlines() if line.startswith(f"{board} ") and text in line]


@pytest.mark.acceptance
def test_boards_without_differences_are_reported(drift: Run, there: Path, tmp_path: Path) -> None:
    ran = drift()
    assert ran.returncode == 0, ran.stdout
    assert "Nothing differs.\nBoards compared: 2 of 2." in ran.stdout
    assert found(tmp_path) == {"changes": [], "compared": ["a", "b"], "not_compared": {}}
    assert contents(there) == RIGHT


@pytest.mark.acceptance
def test_differences_are_reported_with_their_board_and_stay(drift: Run, there: Path, tmp_path: Path) -> None:
    (there / "a.json").write_text("bad\n")
    (there / "two").write_text("bad\n")
    (there / "token").write_text("planted-old-token\n")
    (there / "daemonset").write_text("bad\n")
    before = contents(there)
    ran = drift(token="planted-new-token")
    assert ran.returncode == 1, ran.stdout
    changes = [(change["board"], change["task"]) for change in found(tmp_path)["changes"]]
    assert sorted(changes) == sorted(
        [
            ("a", TASKS["docker"]),
            ("a", TASKS["restart"]),
            ("(cluster)", TASKS["daemonset"]),
            *((board, TASKS[task]) for board in "ab" for task in ("files", "token")),
        ]
    )
    for board, task in changes:
        assert rows(ran.stdout, board, task)
    assert rows(ran.stdout, "a", f"{TASKS['docker']}: {there}/a.json")
    assert "site.yml would change this" in ran.stdout
    assert contents(there) == before
    assert "planted" not in ran.stdout + json.dumps(found(tmp_path))


@pytest.mark.acceptance
def test_diff_of_a_changed_inventory_is_shown_and_written(drift: Run, tmp_path: Path) -> None:
    ran = drift(wanted="better")
    assert ran.returncode == 1, ran.stdout
    assert "-good" in ran.stdout
    assert "+better" in ran.stdout
    (first, *_) = found(tmp_path)["changes"]
    assert (first["diff"][0]["before"], first["diff"][0]["after"]) == ("good\n", "better\n")


UNREACHED = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("board", "status", "reason"),
    [
        ({"broken": ["b"]}, 2, "preflight found 1 problem"),
        # ssh's own words, or Ansible's if ssh has ended before Ansible has written to it.
        ({"hosts": {"a": None, "b": UNREACHED}}, 4, "127.0.0.1"),
    ],
)
def test_board_that_was_not_compared_is_reported(
    drift: Run, tmp_path: Path, board: dict[str, Any], status: int, reason: str
) -> None:
    ran = drift(wanted="better", **board)
    assert ran.returncode == status, ran.stdout
    (row,) = rows(ran.stdout, "b", "not compared: ")
    assert reason in row
    assert rows(ran.stdout, "a", TASKS["docker"])
    assert found(tmp_path)["compared"] == ["a"]


def test_without_its_plugin_nothing_is_compared(drift: Run, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "playbooks/comparison/callback_plugins")
    ran = drift()
    assert ran.returncode == 2, ran.stdout
    assert "callback plugin of drift.yml was not loaded" in " ".join(ran.stdout.split())


@pytest.mark.acceptance
def test_file_that_cannot_be_written_is_an_error(drift: Run, tmp_path: Path) -> None:
    ran = drift(f"--extra-vars=jetson_k3s_drift_file={tmp_path}/no/such/drift.json")
    assert ran.returncode == 2, ran.stdout
    assert "jetson_k3s_drift_file: " in ran.stdout


def roles(value: Any) -> set[tuple[str, str]]:
    """The roles that plays use, each with the file of its tasks."""
    if isinstance(value, list):
        return set().union(*map(roles, value))
    if not isinstance(value, dict):
        return set()
    used = [
        value[key] for key in ("ansible.builtin.import_role", "ansible.builtin.include_role") if key in value
    ]
    return {(one["name"], one.get("tasks_from", "main")) for one in used} | roles([*value.values()])


def test_drift_compares_the_roles_that_site_yml_runs() -> None:
    text = (PLAYBOOKS / "site.yml").read_text()
    locked = {(role, "main") for role in re.findall("__run_lock_role: (.+)", text)}
    assert locked
    compared = {
        role
        for role in roles(yaml.safe_load(text)) | locked
        if role[0] not in ELSEWHERE and role[1] not in ("build", "build_on_board", "compare", "jtop_result")
    }
    assert compared == roles(yaml.safe_load(PLAYS.read_text()))


def test_diffs_of_a_loop_are_those_of_its_changed_items() -> None:
    items = [
        {"changed": True, "diff": {"before": "a"}},
        {"changed": False, "diff": {"before": "b"}},
        "a package",
    ]
    assert CODE["diffs"]({"changed": True, "results": items}) == [{"before": "a"}]


@pytest.mark.parametrize(
    ("diff", "diffs"),
    [(None, []), ({"prepared": "x"}, [{"prepared": "x"}]), ([{"before": "a"}, {"before": "b"}],) * 2],
)
def test_diffs_of_a_task_are_one_or_several(diff: Any, diffs: list[dict[str, Any]]) -> None:
    assert CODE["diffs"]({"changed": True, "diff": diff}) == diffs


@pytest.mark.parametrize(
    ("diff", "place"),
    [
        ({"before_header": "/etc/a (mode 0o600)", "before": "x"}, "/etc/a (mode 0o600)"),
        ({"before": {"path": "/etc/b"}, "after": {"path": "/etc/b"}}, "/etc/b"),
        ({"before": "x"}, ""),
        ({"prepared": "x"}, ""),
    ],
)
def test_a_diff_names_its_file(diff: dict[str, Any], place: str) -> None:
    assert CODE["place"](diff) == place


def test_every_play_is_in_check_mode_and_shows_differences() -> None:
    plays = yaml.safe_load(PLAYS.read_text())
    assert {(one["check_mode"], one["diff"], tuple(one["tags"])) for one in plays} == {
        (True, True, ("always",))
    }


def test_board_that_was_not_compared_is_not_reported_as_equal() -> None:
    told = CODE["table"]([], {"b": "off"}, 1)
    assert "b  not compared: off" in told
    assert "Nothing differs" not in told
