# SPDX-License-Identifier: Apache-2.0
"""With each ansible-core but the tests' own: a board becomes a cluster, is asked, and is bare again."""

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.ansible_core import NEWEST, OLDEST
from tests.lab import lab
from tests.lab.board import switch_on_after_reboot

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

# The oldest boards for which a list is there, and the newest.
BOARDS = [(OLDEST, "nano-jp4"), ("2.20", "agxorin-jp72"), (NEWEST, "thor5000-jp72")]


@pytest.mark.parametrize(("release", "board"), BOARDS)
def test_board_is_installed_asked_and_reset_with(release: str, board: str) -> None:
    name = f"core-{release.replace('.', '-')}"

    def play(playbook: str, *arguments: str) -> PlaybookRun:
        return run_playbook(name, playbook, *arguments, release=release)

    with lab.fresh(name, (board,)) as boards:
        (server,) = boards
        play("site.yml").checked()
        assert Cluster(boards).allocatable() == {server.name: 1}
        play("site.yml").unchanged()
        play("drift.yml").unchanged()
        play("status.yml").unchanged()
        play("verify.yml").checked()
        switch_on_after_reboot(server, always=True)
        play("reboot.yml").checked()
        play("reset.yml", f"--extra-vars=k3s_reset_cluster={server.name}").checked()
        assert server.exec("sh", "-c", "ls /usr/local/bin/k3s", check=False) == ""
