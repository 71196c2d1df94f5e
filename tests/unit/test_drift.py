# SPDX-License-Identifier: Apache-2.0
"""drift.yml reports differences, and boards that it could not compare. Its own plays run with stub roles."""

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.playing import Run as Played
from tests.unit.roles.playing import play

PLAYBOOKS = CHECKOUT / "playbooks"
PLAYS = PLAYBOOKS / "comparison/plays.yml"
CODE = runpy.run_path(str(PLAYBOOKS / "comparison/callback_plugins/drift.py"))
# Steps of site.yml that drift.yml does not compare: locks, restarts in batches, and the verification.
ELSEWHERE = {"run_lock", "rollout", "gpu_verify"}

TASK = "nvidia_docker : Ensure daemon.json"
PING = "- ansible.builtin.ping:\n"
STUBS = {
    "gpu_device_plugin/tasks/main.yml": PING,
    "image_supply/tasks/main.yml": PING,
    "jetson_facts/tasks/main.yml": PING,
    "k3s/tasks/main.yml": PING,
    "nvidia_docker/tasks/runtime.yml": PING,
    "preflight/tasks/controller.yml": PING,
    "preflight/tasks/main.yml": """\
- ansible.builtin.fail: {msg: "preflight found 1 problem\\nand more"}
  when: inventory_hostname in broken
""",
    "nvidia_docker/tasks/main.yml": """\
- name: Ensure daemon.json
  ansible.builtin.copy: {content: better, dest: "{{ there }}/{{ inventory_hostname }}.json", mode: "0600"}
""",
}
Run = Callable[..., Played]


@pytest.fixture
def drift(tmp_path: Path) -> Run:
    for path, text in STUBS.items():
        file = tmp_path / "roles" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(PLAYBOOKS, tmp_path / "playbooks", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*arguments: str, hosts: dict[str, Any] | None = None, **variables: Any) -> Any:
        settings = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "broken": [],
            "there": str(tmp_path),
            **variables,
        }
        inventory = {"k3s_cluster": {"hosts": hosts or {"a": None, "b": None}, "vars": settings}}
        (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
        return play(
            tmp_path / "inventory.yml",
            tmp_path / "playbooks/drift.yml",
            f"--extra-vars=jetson_k3s_output={tmp_path}/drift.json",
            *arguments,
            ANSIBLE_ROLES_PATH=str(tmp_path / "roles"),
        )

    return run


def found(directory: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((directory / "drift.json").read_text())
    return written


def rows(told: str, board: str, text: str) -> list[str]:
    _, _, table = told.partition("WHAT DIFFERS")
    return [line for line in table.splitlines() if line.startswith(f"{board} ") and text in line]


UNREACHED = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


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
    ran = drift(**board)
    assert ran.returncode == status, ran.stdout
    (row,) = rows(ran.stdout, "b", "not compared: ")
    assert reason in row
    assert rows(ran.stdout, "a", TASK)
    assert found(tmp_path)["compared"] == ["a"]


def test_without_its_plugin_nothing_is_compared(drift: Run, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "playbooks/comparison/callback_plugins")
    ran = drift()
    assert ran.returncode == 2, ran.stdout
    assert "callback plugin of drift.yml was not loaded" in " ".join(ran.stdout.split())


def test_file_that_cannot_be_written_is_an_error(drift: Run, tmp_path: Path) -> None:
    ran = drift(f"--extra-vars=jetson_k3s_output={tmp_path}/no/such/drift.json")
    assert ran.returncode == 2, ran.stdout
    assert "jetson_k3s_output: " in ran.stdout


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
    site = roles(yaml.safe_load((PLAYBOOKS / "site.yml").read_text()))
    compared = {role for role in site if role[0] not in ELSEWHERE and role[1] != "build"}
    assert compared == roles(yaml.safe_load(PLAYS.read_text()))


def test_diffs_of_a_loop_are_those_of_its_changed_items() -> None:
    items = [
        {"changed": True, "diff": {"before": "a"}},
        {"changed": False, "diff": {"before": "b"}},
        "a package",
    ]
    assert CODE["diffs"]({"changed": True, "results": items}) == [{"before": "a"}]
