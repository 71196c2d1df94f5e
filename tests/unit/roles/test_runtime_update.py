# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA runtime older than the bundle's is replaced when that is asked for, and judged as the new one."""

import json
import sys
from pathlib import Path

import pytest

from tests.unit.roles.conftest import ROLES
from tests.unit.roles.playing import play
from tests.unit.roles.preflight_facts import with_facts

PLAYBOOK = """\
- hosts: server
  gather_facts: false
  vars_files: [CONTEXT]
  tasks:
    - ansible.builtin.set_fact:
        jetson: "{{ given }}"
        cacheable: true
    - ansible.builtin.set_fact:
        preflight_bundle_info: {versions: {}, files: "{{ files }}"}
    - ansible.builtin.import_role: {name: nvidia_docker, tasks_from: plan.yml}
    - ansible.builtin.debug:
        msg: >-
          due={{ nvidia_docker_plan.due }}, judged={{ __preflight_facts_then.nvidia_runtime.version }},
          {{ nvidia_docker_plan | preflight_update | map(attribute='found') | join }}.
"""
ARCHIVE = "debs-jetpack6-arm64.tar"
HAS = {"nvidia-container-toolkit": "1.18.0-1", "libnvidia-container1": "1.18.0-1"}
REFUSED = (
    "nvidia_docker_update_runtime, and no nvidia-container-toolkit in the bundle's debs-jetpack6-arm64.tar."
)


@pytest.mark.parametrize(
    ("asked", "installed", "files", "said"),
    [
        (False, "1.16.2", {ARCHIVE: {"packages": HAS}}, "due=False, judged=1.16.2, ."),
        (True, "1.16.2", {ARCHIVE: {"packages": HAS}}, "due=True, judged=1.18.0, ."),
        (True, "1.19.0", {ARCHIVE: {"packages": HAS}}, "due=False, judged=1.19.0, ."),
        (True, None, {ARCHIVE: {"packages": HAS}}, "due=False, judged=, ."),
        (
            True,
            "1.16.2",
            {ARCHIVE: {"packages": {"docker.io": "27"}}},
            f"due=False, judged=1.16.2, {REFUSED}",
        ),
        (True, "1.16.2", {}, f"due=False, judged=1.16.2, {REFUSED}"),
    ],
)
def test_update_that_is_asked_for_counts(
    tmp_path: Path, asked: bool, installed: str | None, files: dict[str, object], said: str
) -> None:
    (tmp_path / "play.yml").write_text(
        PLAYBOOK.replace("CONTEXT", str(ROLES / "preflight/vars/main/context.yml"))
    )
    (tmp_path / "inventory").write_text(
        f"[server]\nlocalhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    )
    given = with_facts(nvidia_runtime__version=installed)
    variables = {"given": given, "files": files, "nvidia_docker_update_runtime": asked}
    run = play(
        tmp_path / "inventory",
        tmp_path / "play.yml",
        f"--extra-vars={json.dumps(variables)}",
        ANSIBLE_FILTER_PLUGINS=str(ROLES / "preflight/filter_plugins"),
    )
    assert run.returncode == 0, run.stdout
    assert said in " ".join(run.stdout.split()), run.stdout
