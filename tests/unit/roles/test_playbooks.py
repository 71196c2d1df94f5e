# SPDX-License-Identifier: Apache-2.0
"""Playbooks: their first checks, the roles of a tag, the specified variables, generated documents."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.ansible_core import NEWEST, OWN
from tests.docs import CHECKOUT
from tests.unit.roles.places import COLLECTION, Data
from tests.unit.roles.playing import play, write_inventory

PLAYBOOKS = CHECKOUT / "playbooks"
CHECKS = PLAYBOOKS / "start/checks.yml"
NONE = "No host of this run is in the group"


def plays(path: Path) -> Iterator[tuple[Path, Data]]:
    for one in yaml.safe_load(path.read_text()):
        imported = one.get("ansible.builtin.import_playbook")
        if imported:
            yield from plays(path.parent / imported)
        else:
            yield path, one


@pytest.mark.parametrize("playbook", sorted({path.stem for path in PLAYBOOKS.glob("*.yml")} - {"bundle"}))
def test_every_playbook_begins_with_checks_that_reach_no_board(playbook: str) -> None:
    found = list(plays(PLAYBOOKS / f"{playbook}.yml"))
    before = found[: [path for path, _ in found].index(CHECKS)]
    assert [one["name"] for _, one in before if one.get("gather_facts", True)] == []


def test_inventory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    run = play(tmp_path / "missing", "playbooks/preflight.yml")
    assert run.returncode == 2
    assert f"{NONE} [k3s_cluster], which this playbook needs" in run.said
    assert f"The inventory is {tmp_path}/missing; its groups with hosts are none." in run.said


def test_inventory_that_ansible_reads_in_part_is_an_error(tmp_path: Path) -> None:
    """Ansible alone goes on without the settings, and ends with 0."""
    given = tmp_path / "inventory"
    given.write_text(f"{INVENTORY}[k3s_cluster:vars]\ngpu_device_plugin_config:\n  version: v1\n")
    run = play(given, "playbooks/status.yml")
    assert run.returncode == 2
    assert f"Ansible could not read all of {given}: its warnings above name the line" in run.said
    assert "group_vars/k3s_cluster.yml" in run.said


@pytest.mark.parametrize(
    ("playbook", "limit", "missing"),
    [
        ("status", "jetson-2", "server"),
        ("monitoring", "all", "monitoring"),
        ("verify", "elsewhere", "k3s_cluster"),
    ],
)
def test_limit_without_a_host_of_the_group_is_an_error(
    tmp_path: Path, playbook: str, limit: str, missing: str
) -> None:
    groups = {"server": ["jetson-1"], "k3s_cluster": ["jetson-1", "jetson-2"], "servers": ["elsewhere"]}
    run = play(write_inventory(tmp_path, groups), f"playbooks/{playbook}.yml", f"--limit={limit}")
    assert run.returncode == 2
    assert f"{NONE} [{missing}]" in run.said
    assert (
        f"its groups with hosts are k3s_cluster, server, servers. The run is limited to {limit}." in run.said
    )


SITE = CHECKOUT / "playbooks/site.yml"
INVENTORY = "[server]\na\n[agent]\nb\n[k3s_cluster:children]\nserver\nagent\n"
ROLE_OF_TASK = re.compile(rf"^ +{COLLECTION}\.(\w+) : (?!Validating arguments)", re.MULTILINE)


def tasks_of(playbook: Path) -> list[Data]:
    """The tasks of a playbook. Those of a block have its tags, if they have none of their own."""
    plays = yaml.safe_load(playbook.read_text())
    tasks = [task for play in plays for task in play.get("tasks", [])]
    return [{"tags": one.get("tags", []), **inner} for one in tasks for inner in one.get("block", [one])]


def roles_of(playbook: Path) -> list[tuple[str, list[str]]]:
    """The roles of a playbook's tasks, and the tags of each."""
    actions = ("ansible.builtin.import_role", "ansible.builtin.include_role")
    return [
        (task[action]["name"].removeprefix(f"{COLLECTION}."), task["tags"])
        for task in tasks_of(playbook)
        for action in actions
        if action in task
    ]


def test_every_step_has_the_name_of_its_role_as_tag() -> None:
    steps = {role: tags for role, tags in roles_of(SITE) if role not in ("run_lock", "rollout")}
    # What two steps have left to it.
    restarts = [task for task in tasks_of(SITE) if task.get("vars", {}).get("__rollout_role")]
    assert [{*one["tags"]} for one in restarts] == [{"nvidia_docker", "k3s"}] * 3
    # What the steps after it take their images from.
    assert steps.pop("image_supply") == ["image_supply", "k3s", "gpu_device_plugin", "user_images"]
    included = [task for task in tasks_of(SITE) if "apply" in task.get("ansible.builtin.include_role", {})]
    assert included
    assert [one["ansible.builtin.include_role"]["apply"]["tags"] for one in included] == [
        one["tags"] for one in included
    ]
    assert steps
    assert {role: tags for role, tags in steps.items() if tags != [role]} == {}


@pytest.mark.parametrize(
    ("tag", "roles"),
    [
        # preflight asks the K3s server about the token
        ("preflight", {"k3s", "nvidia_docker"}),
        ("nvidia_docker", {"k3s", "run_lock", "nvidia_docker", "rollout"}),
        ("gpu_verify", {"k3s", "nvidia_docker", "gpu_verify", "gpu_report"}),
    ],
)
def test_tag_runs_its_step_after_facts_and_preflight(tmp_path: Path, tag: str, roles: set[str]) -> None:
    (tmp_path / "inventory").write_text(INVENTORY)
    listed = play(tmp_path / "inventory", SITE, f"--tags={tag}", "--list-tasks")
    assert set(ROLE_OF_TASK.findall(listed.stdout)) == roles | {"jetson_facts", "preflight"}


# SIMULATED: ends as Python 3.6 does with the modules of an ansible-core that is too new for it.
OLD_PYTHON = """\
#!/bin/sh
echo 'SyntaxError: future feature annotations is not defined' >&2
exit 1
"""


# SIMULATED: a newer Python that says it is that of JetPack 5.
PYTHON_3_8 = """\
import collections, sys
names = "major minor micro releaselevel serial"
sys.version_info = collections.namedtuple("version_info", names)(3, 8, 10, "final", 0)
"""


@pytest.mark.parametrize("python_is", ["3.6", "3.8"])
def test_unsupported_python_of_a_board_is_reported(tmp_path: Path, python_is: str) -> None:
    python, inventory = tmp_path / "python3", tmp_path / "inventory"
    (tmp_path / "sitecustomize.py").write_text(PYTHON_3_8)
    newer = f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n'
    python.write_text(OLD_PYTHON if python_is == "3.6" else newer)
    python.chmod(0o755)
    board = f"jetson-1 ansible_connection=local ansible_become=false ansible_python_interpreter={python}"
    inventory.write_text(f"[server]\n{board}\n[k3s_cluster:children]\nserver\n")
    run = play(inventory, "playbooks/preflight.yml", line=OWN if python_is == "3.6" else NEWEST)
    assert "jetson-1: cannot gather facts" in run.said
    assert "JetPack 4 has Python 3.6, and needs ansible-core 2.16: `make venv ANSIBLE=2.16`" in run.said
    assert "JetPack 5 has Python 3.8, and needs 2.19 or 2.16: `make venv ANSIBLE=2.19`" in run.said
