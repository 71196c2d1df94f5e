# SPDX-License-Identifier: Apache-2.0
"""Changes that restart Docker or K3s go from batch to batch, and stop at the first failure.

site.yml's own plays run with the real role. The roles that it calls are stubs, which log their calls.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles.loading import ROLES
from tests.unit.roles.playing import Run, play_text

PLAYS = ("Restart the agents in batches", "Check the result of the restarts")
LOG = "- ansible.builtin.shell: echo '{what} {{{{ inventory_hostname }}}}' >> '{log}'"
SCHEDULE = """
- ansible.builtin.shell: >-
    echo "{{{{ __k3s_node_state }}}} {{{{ __k3s_node_offers | default('') }}}} {{{{ inventory_hostname }}}}"
    >> '{log}'
- ansible.builtin.fail: {{msg: the API is away}}
  when: __k3s_node_state == 'schedulable' and inventory_hostname in broken
- ansible.builtin.set_fact: {{k3s_node_scheduled: {{offers: {{nvidia.com/gpu: 1}}}}}}
"""
FAILS = """
- ansible.builtin.fail: {msg: no such driver}
  when: inventory_hostname in broken
"""
OFFERED = "schedulable {'nvidia.com/gpu': 1}"


def run(directory: Path, *, broken: tuple[str, ...] = (), **variables: Any) -> tuple[Run, list[str]]:
    """Run the plays on four agents and a server; give the run and the calls of the roles, in order."""
    log = directory / "log"
    log.touch()
    stubs = {
        "k3s/tasks/schedule.yml": SCHEDULE.format(log=log),
        "k3s/tasks/main.yml": LOG.format(what="k3s", log=log) + FAILS,
        "nvidia_docker/tasks/restart.yml": LOG.format(what="docker", log=log) + FAILS,
        "run_lock/tasks/release_failed.yml": "[]",
    }
    for path, text in stubs.items():
        file = directory / "roles" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(ROLES / "rolling_restart", directory / "roles/rolling_restart")
    site = yaml.safe_load((CHECKOUT / "playbooks/site.yml").read_text())
    plays = [one | {"become": False, "gather_facts": False} for one in site if one["name"] in PLAYS]
    assert len(plays) == len(PLAYS)
    ran = play_text(
        directory,
        yaml.safe_dump(plays, sort_keys=False),
        groups={"server": "s", "agent": "abcd", "k3s_cluster": "sabcd"},
        variables={"broken": broken, "jetson_k3s_serial": [1, 2], **variables},
        fails=bool(broken),
        ANSIBLE_ROLES_PATH=str(directory / "roles"),
    )
    return ran, [" ".join(line.split()) for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("restarted", "variables"),
    [
        ("docker", {"nvidia_docker_restart_waits": True}),
        ("k3s", {"k3s_restart_waits": True, "__rolling_restart_drain": True}),
    ],
)
def test_drained_nodes_restart_batch_by_batch(
    tmp_path: Path, restarted: str, variables: dict[str, Any]
) -> None:
    _, lines = run(tmp_path, **variables)
    for boards, batch in (("a", lines[:3]), ("bc", lines[3:9]), ("d", lines[9:])):
        steps = [f"{step} {board}" for step in ("drained", restarted, OFFERED) for board in boards]
        assert sorted(batch) == sorted(steps)


def test_restarts_stop_at_the_first_failure(tmp_path: Path) -> None:
    ran, lines = run(tmp_path, broken=("b",), nvidia_docker_restart_waits=True)
    assert "docker b" in lines and "docker c" in lines  # one batch
    assert not [line for line in lines if line.endswith(" d")]
    assert "b: a changed setting needs a restart of Docker or K3s, and that went wrong." in ran.said
    assert "keep their old settings until this one is mended: d." in ran.said
    assert "no such driver" in ran.said
    assert "It stays cordoned: the API is away" in ran.said
    assert "d keeps its old settings, because their change went wrong on b" in ran.said
    # It ends the run for nobody else.
    recap = next(line.split() for line in ran.stdout.splitlines() if line.startswith("d "))
    assert {"unreachable=0", "failed=0"} <= set(recap)


@pytest.mark.parametrize(("active", "limit"), [(True, "5"), (False, "0")])
def test_five_running_k3s_restart_at_a_time_and_first_starts_have_no_limit(active: bool, limit: str) -> None:
    variables = yaml.safe_load((ROLES / "k3s/vars/main.yml").read_text())
    (block, *_) = yaml.safe_load((ROLES / "k3s/tasks/service.yml").read_text())
    (start,) = (task for task in block["block"] if "ansible.builtin.systemd_service" in task)
    throttle = jinja2.Template(start["throttle"])
    assert throttle.render(variables | {"__k3s_state": {"active": active}}) == limit
