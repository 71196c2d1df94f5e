# SPDX-License-Identifier: Apache-2.0
"""What the Molecule scenarios share: .config/molecule/config.yml."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cache import CHECKOUT

CHANGES = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Write the time
      ansible.builtin.shell: date +%s%N
"""
SCENARIO = """\
ansible: {playbooks: {converge: converge.yml}}
scenario: {test_sequence: [converge, idempotence]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory for Molecule, below a checkout, with a scenario whose playbook always changes something."""
    for name in ("ansible.cfg", ".collections"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    scenario = tmp_path / "tests/molecule/default"
    scenario.mkdir(parents=True)
    (scenario / "molecule.yml").write_text(SCENARIO)
    (scenario / "converge.yml").write_text(CHANGES)
    return tmp_path / "tests"


def test_task_that_changes_something_again_is_named(project: Path) -> None:
    """Molecule finds task names in the output of the callback `default`. ansible.cfg has another one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MOLECULE_EPHEMERAL_DIRECTORY": str(project / "state"),
    }
    config = CHECKOUT / ".config/molecule/config.yml"
    command = ("molecule", "--base-config", config, "test", "--destroy=never")
    ran = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode != 0
    assert "Idempotence test failed because of the following tasks:" in ran.stderr
    assert "=> Write the time" in ran.stderr
