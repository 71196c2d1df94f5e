# SPDX-License-Identifier: Apache-2.0
"""A board whose Python does not fit is told what to do."""

from pathlib import Path

from tests.unit.roles.playing import play

# SIMULATED: ends as Python 3.6 does with the modules of an ansible-core that is too new for it.
OLD_PYTHON = """\
#!/bin/sh
echo 'SyntaxError: future feature annotations is not defined' >&2
exit 1
"""


def test_board_whose_python_does_not_fit_is_told_so(tmp_path: Path) -> None:
    python, inventory = tmp_path / "python3", tmp_path / "inventory"
    python.write_text(OLD_PYTHON)
    python.chmod(0o755)
    board = f"jetson-1 ansible_connection=local ansible_become=false ansible_python_interpreter={python}"
    inventory.write_text(f"[server]\n{board}\n[k3s_cluster:children]\nserver\n")
    run = play(inventory, "playbooks/preflight.yml")
    assert "jetson-1: cannot look at the board" in run.said
    assert "JetPack 4 has Python 3.6, for which this computer needs ansible-core 2.16" in run.said
