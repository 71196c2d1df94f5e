# SPDX-License-Identifier: Apache-2.0
"""Each step of site.yml can be run alone, and none without the look at the boards."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.playing import play

SITE = CHECKOUT / "playbooks/site.yml"
INVENTORY = "[server]\na\n[agent]\nb\n[k3s_cluster:children]\nserver\nagent\n"
LOOK = {"jetson_facts", "preflight"}
ROLE_OF_TASK = re.compile(r"^ +(\w+) : (?!Validating arguments)", re.MULTILINE)


def tasks_of(playbook: Path) -> list[dict[str, Any]]:
    return [task for play in yaml.safe_load(playbook.read_text()) for task in play.get("tasks", [])]


def test_every_step_has_the_name_of_its_role_as_tag() -> None:
    blocks = [task for task in tasks_of(SITE) if "block" in task]
    steps = {called(task["block"][0]): task["tags"] for task in blocks}
    # What two steps have left to it.
    assert set(steps.pop("rolling_restart")) == {"nvidia_docker", "k3s"}
    # What the steps after it take their images from.
    assert steps.pop("image_supply") == ["image_supply", "k3s", "gpu_device_plugin"]
    assert steps
    assert {role: tags for role, tags in steps.items() if tags != [role]} == {}


def called(task: dict[str, Any]) -> str:
    name: str = (task.get("ansible.builtin.import_role") or task["ansible.builtin.include_role"])["name"]
    return name


@pytest.mark.parametrize(
    ("tag", "roles"),
    [
        # preflight asks the K3s server about the token
        ("preflight", {"k3s", "nvidia_docker"}),
        ("nvidia_docker", {"k3s", "run_lock", "nvidia_docker", "rolling_restart", "upload"}),
        ("gpu_verify", {"k3s", "nvidia_docker", "image_supply", "gpu_verify", "gpu_report", "upload"}),
    ],
)
def test_tag_runs_its_step_after_the_look_at_the_boards(tmp_path: Path, tag: str, roles: set[str]) -> None:
    (tmp_path / "inventory").write_text(INVENTORY)
    listed = play(tmp_path / "inventory", SITE, f"--tags={tag}", "--list-tasks")
    assert set(ROLE_OF_TASK.findall(listed.stdout)) == LOOK | roles
