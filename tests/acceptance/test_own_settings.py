# SPDX-License-Identifier: Apache-2.0
"""A board whose owner has settings of his own, and an owner who chooses the tokens."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import lab
from tests.lab.board import Board
from tests.lab.engine import docker
from tests.lab.paths import CHECKOUT

pytestmark = pytest.mark.lab

LAB = "own-settings"
TOKEN = "a-token-of-my-own"
AGENT_TOKEN = "and-one-for-the-agents"
SIMULATED_POWER = CHECKOUT / "tests/lab/simulated_power"
TOKENS = f"k3s_token: {TOKEN}\nk3s_agent_token: {AGENT_TOKEN}\n"
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
    """The run of site.yml with the chosen tokens, as talkative as possible."""
    variables = tmp_path_factory.mktemp("vars") / "token.yml"
    variables.write_text(TOKENS)
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


@pytest.mark.parametrize(("token", "name"), [(TOKEN, "token"), (AGENT_TOKEN, "agent-token")])
def test_token_is_in_its_file_only(board: Board, run: PlaybookRun, token: str, name: str) -> None:
    assert token not in run.output
    assert token not in board.exec("journalctl", "--no-pager")
    found = board.exec("grep", "--recursive", "--files-with-matches", token, "/etc", check=False).split()
    assert found == [f"/etc/rancher/k3s/jetson-k3s.{name}"]
    assert board.exec("stat", "--format=%a %U", *found).split() == ["600", "root"]


def test_agents_have_a_token_of_their_own(board: Board, run: PlaybookRun) -> None:
    for name, token in (("token", TOKEN), ("agent-token", AGENT_TOKEN)):
        assert board.exec("cat", f"/var/lib/rancher/k3s/server/{name}").strip().endswith(f":{token}")


# Its preflight asks the running server about the agents' token.
def test_second_run_with_the_same_tokens_changes_nothing(
    board: Board, run: PlaybookRun, tmp_path: Path
) -> None:
    variables = tmp_path / "token.yml"
    variables.write_text(TOKENS)
    second = run_playbook(LAB, "site.yml", f"--extra-vars=@{variables}")
    assert second.returncode == 0, second.output
    assert second.recap["jetson-1"].changed == 0, second.output


@pytest.fixture(scope="module")
def powered(board: Board) -> Board:
    """The board with SIMULATED power modes: 0 and 3 differ in clocks, 2 in a mask as well."""
    for name, place in (("nvpmodel", "/usr/sbin"), ("jetson_clocks", "/usr/bin"), ("nvpmodel.conf", "/etc")):
        docker("cp", str(SIMULATED_POWER / name), f"{board.container}:{place}/{name}")
    board.exec("sh", "-c", "mkdir -p /var/lib/nvpmodel; echo 0 > /var/lib/nvpmodel/simulated")
    return board


def test_power_mode_and_clocks_are_set_once_and_given_back(powered: Board) -> None:
    wanted = ("--extra-vars=power_mode_nvpmodel=MODE_50W", "--extra-vars=power_mode_jetson_clocks=true")
    changed = []
    for _ in range(2):
        result = run_playbook(LAB, "power_mode.yml", *wanted)
        assert result.returncode == 0, result.output
        changed.append(result.recap["jetson-1"].changed > 0)
    assert changed == [True, False]
    assert powered.exec("cat", "/var/lib/nvpmodel/simulated").strip() == "3"
    assert powered.exec("ls", "/run/simulated-clocks-locked")
    back = run_playbook(LAB, "power_mode.yml", wanted[0])
    assert back.returncode == 0, back.output
    assert powered.exec("ls", "/run/simulated-clocks-locked", check=False).strip() == ""


def test_power_mode_that_needs_a_reboot_is_refused_unless_allowed(powered: Board) -> None:
    before = powered.exec("cat", "/var/lib/nvpmodel/simulated")
    result = run_playbook(LAB, "power_mode.yml", "--extra-vars=power_mode_nvpmodel=MODE_30W")
    recap = result.recap["jetson-1"]
    assert (recap.failed, recap.changed) == (1, 0), result.output
    assert "Allow it with power_mode_reboot: true" in " ".join(result.output.split())
    assert powered.exec("cat", "/var/lib/nvpmodel/simulated") == before


# Last, for the cluster goes with it.
def test_reset_gives_docker_its_owners_settings_back(board: Board, run: PlaybookRun) -> None:
    again = ("reset.yml", "--extra-vars=k3s_reset_docker=true")
    reset = run_playbook(LAB, *again)
    assert reset.returncode == 0, reset.output
    assert json.loads(board.exec("cat", "/etc/docker/daemon.json")) == OWN
    assert board.exec("docker", "info", "--format={{.DefaultRuntime}}").strip() == "runc"
    assert "nvidia" not in board.exec("docker", "info", "--format={{.Runtimes}}")
    docker_process = board.exec("systemctl", "show", "--property=MainPID", "docker")
    second = run_playbook(LAB, *again)
    assert second.recap["jetson-1"].changed == 0, second.output
    assert board.exec("systemctl", "show", "--property=MainPID", "docker") == docker_process
