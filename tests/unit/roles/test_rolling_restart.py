# SPDX-License-Identifier: Apache-2.0
"""Changes that restart Docker or K3s go from batch to batch, and no further than the first failure.

site.yml's own plays run with the real role. The roles that it calls are stubs: they write down what they
were told.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.playing import Run, play

PLAYS = ("Restart what runs on agents, batch by batch", "Check what the restarts have come to")
SAY = "- ansible.builtin.shell: echo '{what} {{{{ inventory_hostname }}}}' >> '{log}'"
SCHEDULE = """
- ansible.builtin.shell: >-
    echo "{{{{ k3s_node_state }}}} {{{{ k3s_node_offers | default('') }}}} {{{{ inventory_hostname }}}}"
    >> '{log}'
- ansible.builtin.fail: {{msg: the API is away}}
  when: k3s_node_state == 'schedulable' and inventory_hostname in lost
- ansible.builtin.set_fact: {{k3s_node_scheduled: {{offers: {{nvidia.com/gpu: 1}}}}}}
"""
FAILS = """
- ansible.builtin.fail: {msg: no such driver}
  when: inventory_hostname in broken
"""
OFFERED = "schedulable {'nvidia.com/gpu': 1}"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run the plays on four agents and a server; give the run and what the roles were told, in order."""
    log = tmp_path / "log"
    log.touch()
    stubs = {
        "k3s/tasks/schedule.yml": SCHEDULE.format(log=log),
        "k3s/tasks/main.yml": SAY.format(what="k3s", log=log) + FAILS,
        "nvidia_docker/tasks/restart.yml": SAY.format(what="docker", log=log) + FAILS,
        "board_lease/tasks/give_back_failed.yml": SAY.format(what="ends", log=log),
    }
    for path, text in stubs.items():
        file = tmp_path / "roles" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(CHECKOUT / "roles/rolling_restart", tmp_path / "roles/rolling_restart")
    plays = [
        one for one in yaml.safe_load((CHECKOUT / "playbooks/site.yml").read_text()) if one["name"] in PLAYS
    ]
    assert len(plays) == len(PLAYS)
    (tmp_path / "play.yml").write_text(
        yaml.safe_dump([one | {"become": False, "gather_facts": False} for one in plays], sort_keys=False)
    )

    def runs(**variables: Any) -> tuple[Run, list[str]]:
        children = {"server": {"hosts": {"s": None}}, "agent": {"hosts": dict.fromkeys("abcd")}}
        settings = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "broken": [],
            "lost": [],
            **variables,
        }
        inventory = {"k3s_cluster": {"children": children, "vars": settings}}
        (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
        ran = play(
            tmp_path / "inventory.yml",
            tmp_path / "play.yml",
            "--extra-vars={rolling_restart_serial: [1, 2]}",
            ANSIBLE_ROLES_PATH=str(tmp_path / "roles"),
        )
        lines = [" ".join(line.split()) for line in log.read_text().splitlines()]
        return ran, [line for line in lines if not line.startswith("ends")]

    return runs


def test_docker_restarts_on_drained_nodes_batch_by_batch(run: Any) -> None:
    ran, lines = run(nvidia_docker_restart_waits=True)
    assert ran.returncode == 0, ran.stdout
    for boards, batch in (("a", lines[:3]), ("bc", lines[3:9]), ("d", lines[9:])):
        steps = [f"{step} {board}" for step in ("drained", "docker", OFFERED) for board in boards]
        assert sorted(batch) == sorted(steps)


def test_k3s_restarts_below_its_pods(run: Any) -> None:
    ran, lines = run(k3s_restart_waits=True)
    assert ran.returncode == 0, ran.stdout
    assert lines[:3] == ["known a", "k3s a", f"{OFFERED} a"]
    _, lines = run(k3s_restart_waits=True, rolling_restart_drain=True)
    assert "drained a" in lines


def test_nothing_that_waits_is_nothing_to_do(run: Any) -> None:
    ran, lines = run()
    assert (ran.returncode, lines) == (0, [])


def test_first_failure_is_the_last(run: Any) -> None:
    ran, lines = run(nvidia_docker_restart_waits=True, broken=["b"])
    assert ran.returncode != 0
    assert "docker b" in lines and "docker c" in lines  # one batch
    assert "schedulable b" in lines  # it takes pods again if it can
    assert not [line for line in lines if line.endswith(" d")]
    said = " ".join(ran.stdout.split())
    assert "b: a changed setting needs a restart of Docker or K3s, and that went wrong." in said
    assert "keep their old settings until this one is mended: d." in said
    assert "no such driver" in said
    assert "d keeps its old settings, because their change went wrong on b" in said
    # It ends the run for nobody else.
    recap = next(line.split() for line in ran.stdout.splitlines() if line.startswith("d "))
    assert {"unreachable=0", "failed=0"} <= set(recap)


def test_node_that_cannot_be_put_back_says_so(run: Any) -> None:
    ran, _ = run(nvidia_docker_restart_waits=True, broken=["a"], lost=["a"])
    said = " ".join(ran.stdout.split())
    assert "no such driver" in said
    assert "It stays cordoned: the API is away" in said
