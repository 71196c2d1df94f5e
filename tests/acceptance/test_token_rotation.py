# SPDX-License-Identifier: Apache-2.0
"""Another server token: all boards get it, and a run that was cut off is ended by the same command.

The tests are one story, in the order of the file, on a server and an agent with the K3s stand-in: no K3s that
can change its token can be compiled here. It came with 1.28.3, and the stand-in names a SIMULATED version.
"""

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import board, bundle, inventory, lab
from tests.lab.board import Board
from tests.lab.engine import docker
from tests.lab.k3s_standin import membership, tokens
from tests.lab.k3s_standin.errors import StandinError

pytestmark = [pytest.mark.lab, pytest.mark.fleet]

LAB = "token-rotation"
UNDISTURBED = f"--extra-vars={json.dumps({'gpu_verify_mode': 'undisturbed'})}"
CHOSEN = "feedfacefeedfacefeedfacefeedface"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with a token that K3s has made."""
    with lab.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as boards:
        bundle.write(inventory.bundle_path(LAB), minors=9)
        run = run_playbook(LAB, "site.yml", UNDISTURBED)
        assert run.returncode == 0, run.why
        yield Cluster(boards)


def server_token(cluster: Cluster) -> str:
    """The server token as K3s has it."""
    return cluster.boards[0].exec("cat", "/var/lib/rancher/k3s/server/token").strip()


def lets_join(cluster: Cluster, token: str) -> bool:
    """Whether the server lets a board join by this token."""
    server = cluster.boards[0]
    assert isinstance(server, Board)
    blind = ssl.create_default_context()
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    authorization = {"Authorization": tokens.basic_auth("node", tokens.parse(token).password)}
    try:
        membership.fetch(f"https://{server.address}:6443/v1-k3s/client-ca.crt", blind, authorization)
    except StandinError as refusal:
        assert "401" in str(refusal)
        return False
    return True


def said_anywhere(cluster: Cluster, secret: str, *runs: PlaybookRun) -> list[str]:
    """Where a secret was said: on the screen, or in a board's journal."""
    journals = {one.name: one.exec("journalctl", "--no-pager") for one in cluster.boards}
    encoded = base64.b64encode(secret.encode()).decode()
    shown = journals | {f"run {number}": run.output for number, run in enumerate(runs)}
    return [where for where, text in shown.items() if secret in text or encoded in text]


def kept(cluster: Cluster) -> list[str]:
    """The old tokens that are kept on the server."""
    found = cluster.boards[0].exec("sh", "-c", "cat /etc/rancher/k3s/jetson-k3s.old-token*", check=False)
    return found.split()


def test_change_of_the_token_that_was_cut_off_is_ended_by_the_same_command(cluster: Cluster) -> None:
    old = server_token(cluster)
    arguments = (UNDISTURBED, "--diff", "-vv")
    # The server has changed it, and has not started again.
    moment = "TASK [k3s : Ensure the given token is in"
    cut_off = run_playbook(LAB, "rotate_token.yml", *arguments, on_line=lambda line: line.startswith(moment))
    assert cut_off.returncode != 0
    new = server_token(cluster)
    assert new != old
    assert (lets_join(cluster, old), lets_join(cluster, new)) == (True, False)
    run = run_playbook(LAB, "rotate_token.yml", *arguments)
    assert run.returncode == 0, run.why
    assert server_token(cluster) == new
    assert (lets_join(cluster, old), lets_join(cluster, new)) == (False, True)
    joined_by = cluster.boards[1].exec("cat", "/etc/rancher/k3s/jetson-k3s.token").strip()
    assert joined_by == new
    assert kept(cluster) == [old]
    assert set(cluster.allocatable().values()) == {1}
    assert said_anywhere(cluster, tokens.parse(new).password, cut_off, run) == []


def test_board_is_not_left_out_of_a_change_of_the_token(cluster: Cluster) -> None:
    before = server_token(cluster)
    run = run_playbook(LAB, "rotate_token.yml", UNDISTURBED, "--limit=jetson-2")
    assert run.returncode != 0
    assert "Run it without --limit" in " ".join(run.output.split())
    assert server_token(cluster) == before


def test_board_that_was_off_joins_by_the_new_token(cluster: Cluster) -> None:
    late = cluster.boards[1]
    assert isinstance(late, Board)
    docker("kill", late.container)
    without = run_playbook(LAB, "rotate_token.yml", UNDISTURBED)
    assert without.recap[late.name].unreachable == 1, without.output
    assert without.recap["jetson-1"].failed == 0, without.why
    board.start(late)
    site = run_playbook(LAB, "site.yml", UNDISTURBED, f"--limit={late.name}")
    assert site.returncode == 0, site.why
    assert late.exec("cat", "/etc/rancher/k3s/jetson-k3s.token").strip() == server_token(cluster)
    assert set(cluster.allocatable().values()) == {1}


def test_token_of_the_inventory_becomes_the_servers_once(cluster: Cluster, tmp_path: Path) -> None:
    variables = tmp_path / "token.yml"
    variables.write_text(f"k3s_token: {CHOSEN}\n")
    arguments = (UNDISTURBED, f"--extra-vars=@{variables}", "--diff", "-vv")
    runs = [run_playbook(LAB, "rotate_token.yml", *arguments) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs[-1].why
    changes = [sum(recap.changed for recap in run.recap.values()) for run in runs]
    assert (changes[0] > 0, changes[1]) == (True, 0), runs[1].output
    for one in cluster.boards:
        text = one.exec("cat", "/etc/rancher/k3s/jetson-k3s.token").strip()
        assert tokens.parse(text).password == CHOSEN
    assert lets_join(cluster, CHOSEN)
    assert len(kept(cluster)) == 3
    assert said_anywhere(cluster, CHOSEN, *runs) == []
