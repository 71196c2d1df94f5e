# SPDX-License-Identifier: Apache-2.0
"""One server and five agents in batches of one and two: a board that fails stops the next batches."""

import json

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import later_bundle
from tests.lab import k3s
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "batches"
TYPES = ("orinnano-jp6",) * 6
OLD, NEW = k3s.VERSION, k3s.named_version("2")
DROP_IN = "/etc/systemd/system/k3s-agent.service.d/broken.conf"
# K3s of one board does not start with the new version, and starts with the old one.
BROKEN = f"[Service]\nExecStartPre=/bin/sh -c '! k3s --version | grep --quiet --fixed-strings {NEW}'\n"


def upgrade() -> PlaybookRun:
    given = json.dumps({"jetson_k3s_bundle": str(later_bundle(LAB)), "jetson_k3s_serial": [1, 2]})
    return run_playbook(LAB, "upgrade.yml", f"--extra-vars={given}")


def versions(boards: list[Board]) -> list[str]:
    return [one.exec("k3s", "--version").split()[2] for one in boards]


def test_upgrade_stops_after_the_batch_of_the_board_that_fails(boards: list[Board]) -> None:
    """jetson-4 is in the second batch, with jetson-3."""
    run_playbook(LAB, "site.yml").checked()
    broken = boards[3]
    broken.exec(
        "sh", "-c", 'mkdir -p "${1%/*}"; echo "$2" > "$1"; systemctl daemon-reload', "sh", DROP_IN, BROKEN
    )
    run = upgrade()
    assert run.returncode != 0, run.output
    assert versions(boards) == [NEW, NEW, NEW, OLD, OLD, OLD], run.output
    said = " ".join(run.output.split())
    assert "upgraded: jetson-1, jetson-2, jetson-3" in said, run.output
    assert "not touched: jetson-5, jetson-6" in said
    assert "failed: jetson-4: not upgraded" in said
    assert "--limit jetson-4,jetson-5,jetson-6" in said
    cluster = Cluster(boards)
    assert cluster.allocatable() == {one.name: 1 for one in boards}, (
        "also jetson-4, which has its old K3s again"
    )
    assert not any(node["spec"].get("unschedulable") for node in cluster.nodes())


def test_same_command_goes_on(boards: list[Board]) -> None:
    boards[3].exec("sh", "-c", f"rm {DROP_IN}; systemctl daemon-reload")
    run = upgrade().checked()
    assert versions(boards) == [NEW] * len(boards)
    said = " ".join(run.output.split())
    assert "upgraded: jetson-4, jetson-5, jetson-6" in said, run.output
    assert "unchanged: jetson-1, jetson-2, jetson-3" in said, run.output
    assert Cluster(boards).allocatable() == {one.name: 1 for one in boards}
