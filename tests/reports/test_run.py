# SPDX-License-Identifier: Apache-2.0
"""Reports of runs: of boards that do not answer, and of boards whose checks have been made."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.reports import samples
from tests.unit.roles.playing import Run, play, write_inventory

# Nobody listens on port 1.
OFF = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
# A fact, as what the stages have found is: Ansible takes no template out of it.
END = """
- hosts: k3s_cluster
  gather_facts: false
  tags: [gpu_verify]
  tasks:
    - ansible.builtin.set_fact:
        __gpu_verify_report: "{{ lookup('ansible.builtin.file', inventory_hostname ~ '.json') | from_json }}"
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.gpu_verify, tasks_from: report.yml}
"""


def run(directory: Path, playbook: str | Path, *arguments: str) -> Run:
    """Run a playbook over two boards that are off; reports are in `reports` of the directory."""
    groups: dict[str, dict[str, Any]] = {"server": {"jetson-1": OFF}, "agent": {"jetson-2": OFF}}
    groups["k3s_cluster"] = groups["server"] | groups["agent"]
    inventory = write_inventory(directory, groups, jetson_k3s_bundle="/nonexistent")
    given = (f"--extra-vars=gpu_verify_reports={directory}/reports", *arguments)
    # A user of the collection does not have our ansible.cfg.
    return play(inventory, playbook, *given, ANSIBLE_GATHERING="implicit")


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """A playbook that is the end of a verification: one board has passed, one has failed."""
    failed = samples.failed("jetson-2")
    failed["checks"][0]["evidence"] = ["{{ 7 * 7 }}"]
    for report in (samples.passed("jetson-1"), failed):
        (tmp_path / f"{report['board']['name']}.json").write_text(json.dumps(report))
    playbook = tmp_path / "end.yml"
    playbook.write_text(END)
    return playbook


def test_a_run_on_one_board_leaves_the_others_report_and_keeps_its_own(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    for name in ("jetson-1", "jetson-2"):
        (reports / f"{name}.json").write_text(json.dumps(samples.passed(name)))
    ran = run(tmp_path, "playbooks/verify.yml", "--limit=jetson-1")
    assert (reports / "index.json").exists(), ran.stdout
    index = json.loads((reports / "index.json").read_text())
    assert [board["name"] for board in index["boards"]] == ["jetson-1"]
    assert index["left_out"] == ["jetson-2"]
    assert sorted(path.name for path in reports.glob("jetson-*.json")) == ["jetson-2.json"]
    assert (reports / "previous" / "jetson-1.json").exists()
    page = (reports / "index.html").read_text()
    assert "passed → not verified" in page
    assert "Not part of this run: jetson-2 (passed" in page


def test_what_was_found_is_written_shown_and_judged(tmp_path: Path, end: Path) -> None:
    ran = run(tmp_path, end, "--tags=gpu_verify")
    reports = tmp_path / "reports"
    for name in ("jetson-1.json", "jetson-2.json"):
        assert json.loads((reports / name).read_text()) == json.loads((tmp_path / name).read_text())
    assert json.loads((reports / "index.json").read_text())["exit_code"] == 1
    assert {"index.html", "junit.xml"} < {path.name for path in reports.iterdir()}
    assert "jetson-1: PASSED" in ran.stdout
    assert "jetson-2: FAILED" in ran.stdout
    assert "1 of 2 boards have passed; failed: jetson-2; SIMULATED: all" in ran.stdout
    for part in ("jetson-2: verification failed\n", "device-query: A pod does not run deviceQuery\n"):
        assert part in ran.stdout
    assert "the pod was not created" in ran.stdout
    assert ran.returncode == 2


def test_a_run_without_verification_reports_nothing(tmp_path: Path, end: Path) -> None:
    ran = run(tmp_path, end, "--tags=k3s")
    assert ran.returncode == 0, ran.stdout
    assert not (tmp_path / "reports").exists()
