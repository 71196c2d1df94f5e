# SPDX-License-Identifier: Apache-2.0
"""A board loses its power in the middle of its upgrade: the same command goes on where that one ended."""

from collections.abc import Iterator

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, bundle, inventory, lab
from tests.lab.board import Board
from tests.lab.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.fleet]

LAB = "upgrade-cut-off"
# The new binary is in place and K3s has not been restarted yet.
MOMENT = "TASK [k3s : Ensure the service is enabled and started]"
RECORD = "/usr/local/bin/k3s.previous"


@pytest.fixture(scope="module")
def server() -> Iterator[Board]:
    """A cluster of one board, and a bundle with a newer K3s."""
    lab.down(LAB)
    try:
        (one,) = lab.up(LAB, ("agxorin-jp6",))
        bundle.write(inventory.bundle_path(LAB).with_name("newer"), version_suffix="2")
        first = run_playbook(LAB, "site.yml")
        assert first.returncode == 0, first.output
        yield one
    finally:
        lab.down(LAB)


def upgrade(cut: Board | None = None) -> PlaybookRun:
    """Run the command; `cut` loses its power in the moment."""

    def cut_power(line: str) -> None:
        if cut is not None and line.startswith(MOMENT):
            docker("kill", cut.container)

    newer = inventory.bundle_path(LAB).with_name("newer")
    return run_playbook(LAB, "upgrade.yml", f"--extra-vars=jetson_k3s_bundle={newer}", on_line=cut_power)


def test_upgrade_is_gone_on_with_after_a_power_cut(server: Board) -> None:
    cut_off = upgrade(cut=server)
    assert cut_off.recap[server.name].unreachable == 1, cut_off.output
    board.start(server)
    assert server.exec("readlink", RECORD) == "k3s-v1.20.2+k3s.standin", "the way back has to be known still"

    run = upgrade()
    assert run.returncode == 0, run.output
    assert "v1.20.2+k3s.standin2" in server.exec("k3s", "--version")
    assert server.exec("sh", "-c", f"ls {RECORD}", check=False) == ""
    cluster = Cluster([server])
    assert cluster.allocatable() == {server.name: 1}
    node = cluster.kubectl("get", "node", server.name, "--output=yaml")
    assert "unschedulable" not in node
    assert "cordoned" not in node
