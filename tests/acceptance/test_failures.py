# SPDX-License-Identifier: Apache-2.0
"""What cannot work ends with one clear message and an untouched board."""

import json
import re
from pathlib import Path

import pytest

from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import inventory
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "failures"
TYPES = ("orinnano-jp6",) * 3  # one becomes a server, one stays bare, one loses its Tegra
WRONG_TOKEN = "certainly-not-the-token"
# Where a playbook could leave something. Not /home, where Ansible has its scratch files, and not the logs.
PLACES = (
    "/etc",
    "/opt",
    "/usr/local",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/jetson-k3s",
    "/run/jetson-k3s",
)
STATE = f"""
find {" ".join(PLACES)} -xdev -printf '%p %y %m %U:%G %s %T@ %l\\n' 2>/dev/null | sort
systemctl show --property=Id,LoadState,UnitFileState,ExecMainStartTimestampMonotonic docker k3s k3s-agent
docker info --format '{{{{.DefaultRuntime}}}} {{{{.Runtimes}}}}'
docker image ls --all --no-trunc --quiet
docker ps --all --no-trunc --quiet
"""
OTHER_FLAGS = r"""
mkdir /etc/systemd/system/docker.service.d
cat > /etc/systemd/system/docker.service.d/other.conf <<'END'
[Service]
Environment=OTHER=--log-driver=journald
ExecStart=
ExecStart=/usr/sbin/dockerd -H fd:// $OTHER
END
echo '{"log-driver": "json-file"}' > /etc/docker/daemon.json
systemctl daemon-reload
"""
# K3s can end at its first start on a busy board, and run at its second.
FIRST_START_FAILS = """
mkdir -p /etc/systemd/system/k3s.service.d
cat > /etc/systemd/system/k3s.service.d/once.conf <<'END'
[Service]
ExecStartPre=/bin/sh -c 'test -e /run/tried || { touch /run/tried; exit 1; }'
END
"""


@pytest.fixture(scope="module")
def bare(boards: list[Board]) -> Board:
    return boards[1]


def state(board: Board) -> list[str]:
    return board.exec("sh", "-c", STATE).splitlines()


def run_alone(board: Board, tmp_path: Path, *arguments: str) -> PlaybookRun:
    path = tmp_path / "inventory.ini"
    path.write_text(inventory.render(LAB, [board]))
    return run_playbook(LAB, "site.yml", *arguments, inventory=path)


def assert_refused(run: PlaybookRun, board: Board, finding: str, *words: str) -> None:
    """The run stopped at preflight with this one finding, whose text has these words."""
    recap = run.recap[board.name]
    assert (recap.failed, recap.changed) == (1, 0), run.output
    message = run.output[run.output.index(f"fatal: [{board.name}") :]
    assert f"{board.name}: preflight found 1 problem" in message
    assert f"1. [error] {finding}" in message
    for word in ("fix:", "expected:", *words):
        assert word in message


def test_docker_that_does_not_start_is_explained_by_its_journal(bare: Board, tmp_path: Path) -> None:
    config = {"storage-driver": "no-such-driver"}
    try:
        run = run_alone(bare, tmp_path, "--extra-vars", json.dumps({"nvidia_docker_daemon_config": config}))
        assert "failed" in bare.exec("systemctl", "is-active", "docker", check=False)
        bare.exec("sh", "-c", "echo '{}' > /etc/docker/daemon.json")
        # systemd counts the starts that have failed.
        again = run_alone(bare, tmp_path, "--tags=nvidia_docker")
    finally:
        bare.exec("rm", "/etc/docker/daemon.json", "/var/lib/jetson-k3s/daemon.json.before")
        bare.exec("rm", "-r", "/run/jetson-k3s")
        bare.exec("systemctl", "reset-failed", "docker", "docker.socket")
        bare.exec("systemctl", "restart", "docker")
    assert run.recap[bare.name].failed == 1, run.output
    message = " ".join(run.output[run.output.index("although /etc/docker/daemon.json says") :].split())
    assert "The last lines of the journal of docker:" in message
    assert "no-such-driver" in message
    assert again.returncode == 0, again.why


def test_flag_that_dockerd_refuses_beside_its_file_is_refused(bare: Board, tmp_path: Path) -> None:
    bare.exec("sh", "-c", OTHER_FLAGS)
    try:
        starts = "dockerd --log-driver=journald --pidfile=/tmp/other.pid 2>&1"
        said = bare.exec("sh", "-c", starts, check=False, timeout=20)
        assert "specified both as a flag and in the configuration file: log-driver" in said
        before = state(bare)
        assert_refused(run_alone(bare, tmp_path), bare, "docker-flags", "--log-driver")
        assert state(bare) == before
    finally:
        bare.exec("rm", "-r", "/etc/docker/daemon.json", "/etc/systemd/system/docker.service.d")
        bare.exec("systemctl", "daemon-reload")


def test_board_without_python_is_told_to_get_one(bare: Board, tmp_path: Path) -> None:
    (program,) = bare.exec("readlink", "--canonicalize", "/usr/bin/python3").split()
    before = state(bare)
    bare.exec("mv", program, f"{program}.away")
    try:
        run = run_alone(bare, tmp_path)
    finally:
        bare.exec("mv", f"{program}.away", program)
    recap = run.recap[bare.name]
    assert (recap.failed, recap.changed) == (1, 0), run.output
    assert "The board has no Python where Ansible looks for it." in " ".join(run.output.split())
    assert state(bare) == before


def test_board_that_is_no_jetson_is_refused(boards: list[Board], tmp_path: Path) -> None:
    computer = boards[2]
    computer.exec("umount", "--lazy", "/sys/firmware", "/sys/devices")
    computer.exec("rm", "/etc/nv_tegra_release")
    before = state(computer)
    run = run_alone(computer, tmp_path)
    assert_refused(run, computer, "not-a-jetson", "no Tegra in the device tree")
    assert state(computer) == before


@pytest.fixture(scope="module")
def server(boards: list[Board]) -> PlaybookRun:
    """The run that has made the first board a server, whose K3s ended when it was started first."""
    boards[0].exec("sh", "-c", FIRST_START_FAILS)
    return run_playbook(LAB, "site.yml", "--limit=jetson-1")


def test_k3s_that_ends_at_its_first_start_is_started_again(server: PlaybookRun) -> None:
    assert server.returncode == 0, server.why
    again = re.findall(r"^FAILED - RETRYING: \[jetson-1\]: .*$", server.output, re.MULTILINE)
    assert sum("Ensure the service is enabled and started" in line for line in again) == 1, again


@pytest.mark.usefixtures("server")
def test_wrong_token_is_refused_by_the_running_server(bare: Board, tmp_path: Path) -> None:
    before = state(bare)
    secrets = tmp_path / "secrets.yml"
    secrets.write_text(f"k3s_token: {WRONG_TOKEN}\n")
    run = run_playbook(LAB, "site.yml", "--limit=jetson-2", f"--extra-vars=@{secrets}", "-vvv")
    assert_refused(run, bare, "join-token", "refuses the join token")
    assert WRONG_TOKEN not in run.output
    assert state(bare) == before
