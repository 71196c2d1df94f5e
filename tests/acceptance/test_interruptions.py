# SPDX-License-Identifier: Apache-2.0
"""If a run is interrupted, the same command succeeds once the cause is gone.

While a run has locked the boards, another run is refused.
"""

import shutil

import pytest

from tests.acceptance.cluster import RESOURCE, Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import later_bundle, reindex
from tests.lab import board, inventory, k3s
from tests.lab.board import Board
from tools.cache import CHECKOUT
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "interruptions"
# The moment in which K3s is started with what the tasks before have written, a new binary among it.
MOMENT = "TASK [jetson_k3s.cluster.k3s : Ensure the service is enabled and started]"
# Smaller than K3s' binary: a SIMULATED full disk, the virtual boards having the machine's.
FULL_DISK = ("mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", "/usr/local/bin")
# A run that has come so far has locked all boards, and keeps them locked until it has verified them.
LOCKED = "TASK [jetson_k3s.cluster.gpu_device_plugin : Apply the DaemonSets of plugin and DRA driver]"
LOCK = "/run/jetson-k3s-lock/lock.json"
TOKEN_FILE = "/etc/rancher/k3s/jetson-k3s.token"
RECORD = "/usr/local/bin/k3s.previous"
OLD, NEW, DAMAGED = k3s.VERSION, k3s.named_version("2"), k3s.named_version("3")
# Settings and programs of a board, when its services were started, images and containers.
STATE = ("sh", "-c", (CHECKOUT / "tests/molecule/shared/state.sh").read_text())


def site(cut: Board | None = None) -> PlaybookRun:
    return run(cut, "site.yml")


def upgrade(cut: Board | None = None, *arguments: str, name: str = "newer") -> PlaybookRun:
    """Upgrade the cluster to a newer K3s; `cut` loses its power in the moment."""
    newer = f"--extra-vars=jetson_k3s_bundle={later_bundle(LAB, name)}"
    return run(cut, "upgrade.yml", newer, *arguments)


def run(cut: Board | None, playbook: str, *arguments: str) -> PlaybookRun:
    done = False

    def cut_power(line: str) -> None:
        nonlocal done
        if cut is not None and not done and line.startswith(MOMENT):
            done = True
            docker("kill", cut.container)

    ended = run_playbook(LAB, playbook, *arguments, on_line=cut_power)
    assert done == (cut is not None), ended.output
    return ended


def version(one: Board) -> str:
    return one.exec("k3s", "--version").split()[2]


def test_damaged_bundle_changes_nothing(boards: list[Board]) -> None:
    archive = next(inventory.bundle_path(LAB).glob("tegra-device-plugin-*.tar.gz"))
    whole = archive.read_bytes()
    try:
        archive.write_bytes(whole[: len(whole) // 2])
        ended = site()
    finally:
        archive.write_bytes(whole)
    assert "[error] bundle-file" in ended.output
    assert {(recap.failed, recap.changed) for recap in ended.recap.values()} == {(1, 0)}, ended.output


def test_power_cut_of_one_board_while_another_is_off(boards: list[Board]) -> None:
    server, agent = boards
    docker("kill", agent.container)
    ended = site(cut=server)
    assert ended.recap[agent.name].unreachable == 1, ended.output
    assert ended.recap[server.name].changed > 0, "the board that was on had to go on without the other"
    assert ended.recap[server.name].unreachable + ended.recap[server.name].failed == 1, ended.output
    for one in boards:
        board.start(one)


def test_full_disk_is_named_and_the_server_has_got_over_its_power_cut(boards: list[Board]) -> None:
    server, agent = boards
    agent.exec(*FULL_DISK)
    try:
        ended = site()
    finally:
        agent.exec("umount", "/usr/local/bin")
    assert ended.recap[agent.name].failed == 1, ended.output
    assert "No space left on device" in ended.output
    assert ended.recap[server.name].failed == 0, ended.output
    assert Cluster(boards).allocatable() == {server.name: 1}, "the server had to get its plugin all the same"


def test_same_command_then_succeeds(boards: list[Board]) -> None:
    site().checked()
    assert Cluster(boards).allocatable() == {one.name: 1 for one in boards}


def locked(boards: list[Board]) -> list[str]:
    return [one.name for one in boards if "lock.json" in one.exec("sh", "-c", f"ls {LOCK}", check=False)]


def test_lock_of_a_killed_run_is_over_and_a_second_run_beside_a_run_is_refused(boards: list[Board]) -> None:
    killed = run_playbook(
        LAB, "site.yml", "--skip-tags=gpu_verify", on_line=lambda line: line.startswith(LOCKED)
    )
    assert killed.returncode < 0, killed.output
    assert locked(boards) == [one.name for one in boards]

    beside: list[PlaybookRun] = []

    def second(line: str) -> None:
        if not beside and line.startswith(LOCKED):
            ends = f"--extra-vars=k3s_reset_cluster={boards[0].name}"
            beside.append(run_playbook(LAB, "reset.yml", ends))

    run_playbook(LAB, "site.yml", on_line=second).checked()
    (refused,) = beside
    # When no agent can be reset, no server is.
    recap = {name: (recap.failed, recap.changed) for name, recap in refused.recap.items()}
    assert recap == {one.name: (int(one is not boards[0]), 0) for one in boards}, refused.output
    assert "who runs site.yml since" in " ".join(refused.output.split())
    assert locked(boards) == []
    run_playbook(LAB, "site.yml", "--check", "--diff").unchanged()
    assert locked(boards) == []


def test_token_that_the_server_does_not_take_any_more_is_replaced(boards: list[Board]) -> None:
    agent = boards[1]
    agent.exec("sed", "--in-place", "s/:[^:]*$/:expired/", TOKEN_FILE)
    agent.exec("systemctl", "restart", "--no-block", "k3s-agent")  # it is not up before its server takes it
    agent.exec(
        "sh", "-c", "until journalctl --unit=k3s-agent | grep --quiet '401 Unauthorized'; do sleep 1; done"
    )
    assert agent.exec("systemctl", "is-active", "k3s-agent", check=False) != "active"
    site().checked()
    assert agent.exec("systemctl", "is-active", "k3s-agent") == "active"


def test_check_mode_of_an_upgrade_changes_nothing(boards: list[Board]) -> None:
    before = [one.exec(*STATE) for one in boards]
    upgrade(None, "--check").checked()
    assert [one.exec(*STATE) for one in boards] == before


def test_server_that_loses_its_power_can_still_roll_back(boards: list[Board]) -> None:
    server, agent = boards
    cut_off = upgrade(cut=server)
    assert cut_off.recap[server.name].unreachable == 1, cut_off.output
    assert cut_off.recap[agent.name].changed == 0, "no agent may be newer than its server"
    board.start(server)
    assert server.exec("readlink", RECORD) == f"k3s-{OLD}"
    # Nobody has said for whom it would be encrypted.
    (kept,) = server.exec("sh", "-c", "ls /var/backups/jetson-k3s/k3s-*.tar.gz").split()
    assert server.exec("stat", "--format=%a %U", kept).strip() == "600 root"


def test_board_that_is_off_holds_up_no_other(boards: list[Board]) -> None:
    server, agent = boards
    docker("kill", agent.container)
    try:
        ended = upgrade()
    finally:
        board.start(agent)
    assert ended.returncode != 0, "a board that was not upgraded is no success"
    assert ended.recap[agent.name].unreachable == 1, ended.output
    assert ended.recap[server.name].failed == 0, ended.output
    assert [version(one) for one in boards] == [NEW, OLD]


def test_same_command_then_finishes_the_upgrade(boards: list[Board]) -> None:
    cluster = Cluster(boards)
    cluster.kubectl("cordon", boards[0].name)
    cluster.create_jobs(resources={"limits": {RESOURCE: 1}})
    cluster.kubectl("uncordon", boards[0].name)
    upgrade().checked()
    assert [version(one) for one in boards] == [NEW, NEW]
    cluster.kubectl("rollout", "status", "deployment/jobs", "--timeout=60s")
    cluster.kubectl("delete", "deployment", "jobs", "--wait")
    cluster.kubectl("wait", "--for=delete", "pod", "--selector=app=jobs", "--timeout=60s")
    backups = boards[0].exec("sh", "-c", "ls /var/backups/jetson-k3s/k3s-*.tar.gz")
    assert len(backups.split()) == 1, "what goes on needs no second backup"
    assert cluster.allocatable() == {one.name: 1 for one in boards}
    for one in boards:
        assert one.exec("sh", "-c", f"ls {RECORD}", check=False) == ""
        node = cluster.kubectl("get", "node", one.name, "--output=yaml")
        assert "unschedulable" not in node
        assert "cordoned" not in node


def test_upgrade_again_changes_nothing(boards: list[Board]) -> None:
    before = [one.exec(*STATE) for one in boards]
    upgrade().unchanged()
    assert [one.exec(*STATE) for one in boards] == before


def test_damaged_k3s_is_rolled_back_on_the_server_and_reaches_no_agent(boards: list[Board]) -> None:
    server, agent = boards
    newer = later_bundle(LAB)
    damaged = newer.with_name("damaged")
    shutil.copytree(newer, damaged)
    described = (damaged / "bundle.yml").read_text()
    (damaged / "bundle.yml").write_text(described.replace(NEW, DAMAGED))
    (damaged / "k3s-amd64").write_text("#!/bin/sh\necho damaged for a test >&2\nexit 1\n")
    reindex(damaged)
    ended = upgrade(name="damaged")
    assert f"{server.name}: not upgraded to {DAMAGED}" in ended.output
    assert "damaged for a test" in ended.output
    assert ended.recap[agent.name].changed == 0, ended.output
    assert [version(one) for one in boards] == [NEW, NEW]
    assert Cluster(boards).allocatable() == {one.name: 1 for one in boards}
    assert server.exec("sh", "-c", f"ls {RECORD}", check=False) == ""
