# SPDX-License-Identifier: Apache-2.0
"""An engine that a role has just installed is judged before anything goes on with it."""

import json
import sys
from pathlib import Path

import pytest

from tests.unit.roles.playing import play
from tests.unit.roles.preflight_facts import with_facts

PLAYBOOK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        jetson: "{{ given }}"
        cacheable: true
    - ansible.builtin.set_fact:
        preflight_bundle_info: {versions: "{{ bundled }}"}
    - ansible.builtin.import_role: {name: preflight, tasks_from: installed.yml}
"""


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("1.24", []),
        (
            "1.44",
            ["it was just installed, and nothing else was changed", "k3s-docker-api-dropped", "below 29"],
        ),
    ],
)
def test_engine_that_does_not_fit_is_refused_once_it_is_there(
    tmp_path: Path, version: str, told: list[str]
) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    (tmp_path / "inventory").write_text(
        f"[server]\nlocalhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    )
    given = with_facts(docker__min_api_version=version, bundle__k3s_version="v1.27.16+k3s1")
    variables = json.dumps({"given": given, "bundled": given["bundle"]})
    run = play(tmp_path / "inventory", tmp_path / "play.yml", f"--extra-vars={variables}")
    assert (run.returncode == 0) is not bool(told), run.stdout
    said = " ".join(run.stdout.split())
    assert [words for words in told if words not in said] == []
