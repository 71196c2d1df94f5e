# SPDX-License-Identifier: Apache-2.0
"""A board whose owner has settings of his own, and an owner who chooses the token."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import lab
from tests.lab.board import Board

pytestmark = pytest.mark.lab

LAB = "own-settings"
TOKEN = "a-token-of-my-own"
OWN = {
    "debug": True,
    "features": {"buildkit": True},
    "runtimes": {"kata": {"path": "/usr/bin/kata"}},
    "registry-mirrors": ["https://mirror.example"],
}


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    """A board with its owner's daemon.json, taken over by Docker."""
    lab.down(LAB)
    try:
        (one,) = lab.up(LAB, ("xaviernx-jp5",))
        one.exec("sh", "-c", f"echo '{json.dumps(OWN)}' > /etc/docker/daemon.json")
        one.exec("systemctl", "restart", "docker")
        yield one
    finally:
        lab.down(LAB)


@pytest.fixture(scope="module")
def docker_process(board: Board) -> str:
    """Which process Docker is before the playbook runs."""
    return board.exec("systemctl", "show", "--property=MainPID", "docker")


@pytest.fixture(scope="module")
def run(board: Board, docker_process: str, tmp_path_factory: pytest.TempPathFactory) -> PlaybookRun:
    """The run of site.yml with the chosen token, as talkative as possible."""
    variables = tmp_path_factory.mktemp("vars") / "token.yml"
    variables.write_text(f"k3s_token: {TOKEN}\n")
    result = run_playbook(LAB, "site.yml", f"--extra-vars=@{variables}", "--diff", "-vvv")
    assert result.returncode == 0, result.output
    return result


def test_every_key_of_the_owner_is_kept(board: Board, run: PlaybookRun) -> None:
    written = json.loads(board.exec("cat", "/etc/docker/daemon.json"))
    assert written["default-runtime"] == "nvidia"
    assert written["runtimes"].keys() == {"kata", "nvidia"}
    assert {key: written[key] for key in OWN if key != "runtimes"} == {
        key: value for key, value in OWN.items() if key != "runtimes"
    }


def test_the_old_file_is_kept(board: Board, run: PlaybookRun) -> None:
    (backup,) = board.exec("sh", "-c", "ls /etc/docker/daemon.json.*").split()
    assert json.loads(board.exec("cat", backup)) == OWN


def test_docker_was_reloaded_and_not_restarted(board: Board, run: PlaybookRun, docker_process: str) -> None:
    assert board.exec("systemctl", "show", "--property=MainPID", "docker") == docker_process
    assert board.exec("docker", "info", "--format={{.DefaultRuntime}}").strip() == "nvidia"


def test_token_is_in_its_file_only(board: Board, run: PlaybookRun) -> None:
    assert TOKEN not in run.output
    assert TOKEN not in board.exec("journalctl", "--no-pager")
    found = board.exec("grep", "--recursive", "--files-with-matches", TOKEN, "/etc", check=False).split()
    assert found == ["/etc/rancher/k3s/jetson-k3s.token"]
    assert board.exec("stat", "--format=%a %U", *found).split() == ["600", "root"]


def test_second_run_with_the_same_token_changes_nothing(
    board: Board, run: PlaybookRun, tmp_path: Path
) -> None:
    variables = tmp_path / "token.yml"
    variables.write_text(f"k3s_token: {TOKEN}\n")
    second = run_playbook(LAB, "site.yml", f"--extra-vars=@{variables}")
    assert second.returncode == 0, second.output
    assert second.recap["jetson-1"].changed == 0, second.output
