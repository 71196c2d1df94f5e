# SPDX-License-Identifier: Apache-2.0
"""The benchmark's counting of rounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.provisioning import CALLBACKS, Result, table

PLAYBOOK = """\
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.command: "true"
    - ansible.builtin.command: "true"
      loop: [1, 2]
    - ansible.builtin.command: "true"
      when: false
    - ansible.builtin.set_fact: {a: 1}
"""


def test_rounds_are_what_reaches_the_host(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    report = tmp_path / "rounds.json"
    subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "--inventory=localhost,",
            f"--extra-vars=ansible_python_interpreter={sys.executable}",
            tmp_path / "play.yml",
        ],
        env=os.environ
        | {
            "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS),
            "ANSIBLE_CALLBACKS_ENABLED": "rounds",
            "ROUNDS_FILE": str(report),
        },
        check=True,
        capture_output=True,
    )
    counts = json.loads(report.read_text())["hosts"]["localhost"]
    assert counts == {"provisioning_tasks": 3, "provisioning_rounds": 3}


def test_too_many_rounds_are_named() -> None:
    few = Result(3, 25, 15, 1, 30, 6.0, 3.0)
    assert "MISSED" not in table([few])
    assert "MISSED" in table([Result(3, 25, 16, 1, 30, 6.0, 3.0)])
    assert "2.0" in table([few])
