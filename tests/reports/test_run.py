# SPDX-License-Identifier: Apache-2.0
"""Reports of whole runs: of boards that do not answer, and of boards whose checks have been made."""

import json
from pathlib import Path

from tests.reports import samples
from tests.unit.roles.playing import Run, play

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


def run(directory: Path, playbook: str | Path, *arguments: str) -> Run:
    """Run a playbook with Ansible's own settings where the checkout's are not."""
    (directory / "inventory").write_text(INVENTORY)
    reports = f"--extra-vars=gpu_verify_reports={directory}/reports"
    # A user of the collection has not our ansible.cfg.
    return play(directory / "inventory", playbook, reports, *arguments, ANSIBLE_GATHERING="implicit")


def verify(directory: Path, *arguments: str) -> dict[str, object]:
    ran = run(directory, "playbooks/verify.yml", *arguments)
    assert (directory / "reports" / "index.json").exists(), ran.stdout
    index: dict[str, object] = json.loads((directory / "reports" / "index.json").read_text())
    return index


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
