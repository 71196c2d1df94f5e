# SPDX-License-Identifier: Apache-2.0
"""verify.yml against boards that do not answer: the run's report has every board, and keeps the last."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.lab.paths import CHECKOUT
from tests.reports import samples

# Nobody listens on port 1.
INVENTORY = """
[server]
jetson-1 ansible_host=127.0.0.1 ansible_port=1
[agent]
jetson-2 ansible_host=127.0.0.1 ansible_port=1
[k3s_cluster:children]
server
agent
[k3s_cluster:vars]
jetson_k3s_bundle=/nonexistent
"""


def verify(directory: Path, *arguments: str) -> dict[str, object]:
    """Run verify.yml with Ansible's own settings where the checkout's are not; what index.json says."""
    (directory / "inventory").write_text(INVENTORY)
    subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            f"--inventory={directory}/inventory",
            f"--extra-vars=gpu_verify_reports={directory}/reports",
            "playbooks/verify.yml",
            *arguments,
        ],
        cwd=CHECKOUT,
        # A user of the collection has not our ansible.cfg.
        env={**os.environ, "ANSIBLE_GATHERING": "implicit"},
        stdout=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )
    index: dict[str, object] = json.loads((directory / "reports" / "index.json").read_text())
    return index


def test_boards_that_never_answer_are_in_the_report(tmp_path: Path) -> None:
    index = verify(tmp_path)
    assert index["exit_code"] == 2
    boards = index["boards"]
    assert isinstance(boards, list)
    assert {board["name"]: board["status"] for board in boards} == {
        "jetson-1": "unverified",
        "jetson-2": "unverified",
    }
    assert "2 boards" in (tmp_path / "reports" / "index.html").read_text()
    assert 'errors="2"' in (tmp_path / "reports" / "junit.xml").read_text()


def test_a_run_on_one_board_leaves_the_others_report_and_keeps_its_own(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    for name in ("jetson-1", "jetson-2"):
        (reports / f"{name}.json").write_text(json.dumps(samples.passed(name)))
    index = verify(tmp_path, "--limit=jetson-1")
    boards = index["boards"]
    assert isinstance(boards, list)
    assert [board["name"] for board in boards] == ["jetson-1"]
    assert index["left_out"] == ["jetson-2"]
    assert sorted(path.name for path in reports.glob("jetson-*.json")) == ["jetson-2.json"]
    assert (reports / "previous" / "jetson-1.json").exists()
    page = (reports / "index.html").read_text()
    assert "passed → not verified" in page
    assert "Not part of this run: jetson-2 (passed" in page
