# SPDX-License-Identifier: Apache-2.0
"""Three servers share an etcd: any of them may be down, and one that was flashed again joins again."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.openpgp import keyring
from tests.acceptance.playbook import PlaybookRun, reports_dir, run_playbook
from tests.lab import board, inventory, lab, lab_dir, ssh
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tools import debian
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "servers"
TYPES = ("agxorin-jp6", "orinnano-jp6", "orinnano-jp6", "orinnano-jp6")
SERVERS = 3
ETCDCTL = "/usr/local/bin/etcdctl"
MEMBERS = f"""
cd /var/lib/rancher/k3s/server/tls/etcd
export ETCDCTL_API=3
{ETCDCTL} --endpoints=https://127.0.0.1:2379 \
    --cacert=server-ca.crt --cert=client.crt --key=client.key member list
"""


def site(
    boards: Sequence[Board],
    playbook: str = "site.yml",
    *arguments: str,
    site: str = "north",
    on_line: Callable[[str], object] | None = None,
) -> PlaybookRun:
    """Run a playbook; the first three boards are servers. `site` is a label of all nodes."""
    file = lab_dir(LAB) / "servers.ini"
    file.write_text(inventory.render(LAB, boards, SERVERS))
    given = json.dumps({"gpu_verify_mode": "undisturbed", "k3s_node_labels": {"site": site}})
    return run_playbook(LAB, playbook, f"--extra-vars={given}", *arguments, inventory=file, on_line=on_line)


def changed(run: PlaybookRun) -> dict[str, int]:
    """How much a run has changed that went well, by board."""
    assert run.returncode == 0, run.why
    return {name: recap.changed for name, recap in run.recap.items()}


def members(one: Board) -> set[str]:
    docker("cp", str(debian.program("etcd-client", "/usr/bin/etcdctl", ARCH)), f"{one.container}:{ETCDCTL}")
    found = [line.split(", ") for line in one.exec("sh", "-c", MEMBERS).splitlines()]
    assert {(status, learner) for _, status, *_, learner in found} == {("started", "false")}
    return {name.rpartition("-")[0] for _, _, name, *_ in found}


def sites(one: Board) -> dict[str, str]:
    labels = [node["metadata"] for node in Cluster([one]).nodes()]
    return {node["name"]: node["labels"].get("site", "") for node in labels}


def ready(one: Board) -> set[str]:
    return {
        node["metadata"]["name"]
        for node in Cluster([one]).nodes()
        for condition in node["status"]["conditions"]
        if (condition["type"], condition["status"]) == ("Ready", "True")
    }


def test_servers_join_one_after_the_other_and_serve_the_gpus(boards: list[Board]) -> None:
    assert all(changed(site(boards)).values())
    assert members(boards[0]) == {one.name for one in boards[:SERVERS]}
    for one in boards[:SERVERS]:
        assert Cluster([one]).allocatable() == {each.name: 1 for each in boards}


def test_verification_reboots_one_server_after_another(boards: list[Board]) -> None:
    """Each server's pod with the GPU comes back, and the others serve meanwhile."""
    before, up = [board.boot_id(one) for one in boards], []

    def watch(line: str) -> None:
        if line.startswith("TASK [jetson_k3s.cluster.board_reboot : Reboot the board]"):
            up.append(sum(board.boot_id(one) in before for one in boards[:SERVERS]))

    for one in boards:
        board.switch_on_after_reboot(one, always=True)
    options = ("--extra-vars=gpu_verify_mode=full", "--extra-vars=gpu_verify_reboot=true")
    run = site(boards, "verify.yml", *options, on_line=watch)
    for one in boards:
        board.switch_on_after_reboot(one, always=False)
    assert run.returncode == 0, run.why
    assert not {board.boot_id(one) for one in boards} & set(before)
    for one in boards:
        report = json.loads((reports_dir(LAB) / f"{one.name}.json").read_text())
        assert {check["id"]: check["status"] for check in report["checks"]}["reboot"] == "passed"
    # The agent's, then each server's: as many of them have not been rebooted yet.
    assert up == [3, 3, 2, 1]


@pytest.mark.parametrize("down", [0, 1])
def test_any_server_may_be_down_and_the_run_goes_on_with_the_others(boards: list[Board], down: int) -> None:
    """The first is the one that all have joined, and that the playbooks use when it answers."""
    gone, there = boards[down], [one for one in boards if one is not boards[down]]
    docker("kill", gone.container)
    try:
        run = site(boards, site=f"without-{down}")
        assert run.recap[gone.name].unreachable == 1, run.output
        for one in there:
            assert (run.recap[one.name].failed, run.recap[one.name].changed) == (0, 1), run.why
        asked = f"{gone.name} does not answer, so this run uses {there[0].name} for kubectl."
        assert (asked in " ".join(run.output.split())) == (down == 0)
        assert sites(there[0]) == {one.name: f"without-{down}" for one in there} | {
            gone.name: sites(there[0])[gone.name]
        }
        refused = site(boards, "reboot.yml", f"--limit={there[0].name}")
        assert (refused.returncode != 0, refused.recap[there[0].name].changed) == (True, 0), refused.output
        assert "etcd has 3 members and needs 2, and only " in " ".join(refused.output.split()), refused.output
    finally:
        board.start(gone)
    board.wait_until_up(gone)
    wait_until(lambda: members(gone) == {one.name for one in boards[:SERVERS]}, "the server is back", 120)
    # What it has missed, and nothing else.
    assert changed(site(boards, site=f"without-{down}")) == {one.name: int(one is gone) for one in boards}


def test_first_server_that_was_flashed_again_begins_no_cluster_of_its_own(boards: list[Board]) -> None:
    first = boards[0]
    Cluster(boards).kubectl("create", "configmap", "before")
    board.lose_disks(first)
    ssh.close_connections(inventory.control_directory(LAB))
    lab.up(LAB, TYPES)
    run = site(boards)
    assert "server-new" in run.output, run.output
    assert {recap.changed for recap in run.recap.values()} == {0}
    assert len(sites(boards[1])) == len(boards)


def test_cluster_forgets_it_with_its_member_and_it_joins(boards: list[Board]) -> None:
    first, second, *others = boards
    ordered = [second, first, *others]
    refused = site(boards, "forget.yml", f"--limit={second.name}")
    assert "K3s is there and is a member of etcd" in " ".join(refused.output.split()), refused.output
    wait_until(lambda: first.name not in ready(second), "its node is not Ready any more", 120)
    # It is still the first one of the inventory.
    assert changed(site(boards, "forget.yml", f"--limit={first.name}")) == {first.name: 1}
    assert members(second) == {second.name, others[0].name}
    changed(site(ordered))
    assert members(second) == {one.name for one in boards[:SERVERS]}
    assert (
        Cluster([first]).kubectl("get", "configmap", "before", "--output=name").strip() == "configmap/before"
    )
    assert Cluster([first]).allocatable() == {one.name: 1 for one in boards}
    assert changed(site(ordered)) == {one.name: 0 for one in boards}


def k3s_starts(boards: Sequence[Board]) -> dict[str, str]:
    """When K3s was started, by board."""
    show = ("systemctl", "show", "--property=ActiveState,ExecMainStartTimestampMonotonic", "k3s")
    return {one.name: one.exec(*show) for one in boards}


def kept(boards: Sequence[Board]) -> str:
    find = "find /var/lib/rancher/k3s -maxdepth 2 '(' -name '*.before-*' -o -name restore.json ')'"
    return "".join(one.exec("sh", "-c", find) for one in boards)


@pytest.fixture(scope="module")
def backup(boards: list[Board]) -> Iterator[Path]:
    first, second, *others = boards
    ordered = [second, first, *others]
    directory = lab_dir(LAB) / "backups"
    with keyring() as key:
        changed(site(ordered, "backup.yml", f"--extra-vars=k3s_backup_recipient={key}"))
        Cluster(ordered).kubectl("create", "configmap", "after")
        (file,) = directory.glob("*.gpg")
        yield file


@pytest.mark.parametrize("running", [True, False])
def test_restore_with_a_wrong_token_stops_no_server(boards: list[Board], backup: Path, running: bool) -> None:
    """Preflight finds it at the K3s that runs, and the check of the backup where K3s does not run."""
    first, second, *others = boards
    ordered, servers = [second, first, *others], boards[:SERVERS]
    if not running:
        second.exec("systemctl", "stop", "k3s")
    before = k3s_starts(servers)
    given = json.dumps({"k3s_backup_file": str(backup), "k3s_token": "of-another-cluster"})
    run = site(ordered, "restore.yml", f"--extra-vars={given}")
    assert run.returncode != 0
    words = "join-token" if running else "No server was stopped: "
    assert words in " ".join(run.output.split()), run.output
    assert running or "k3s_token is not the token that this cluster had" in " ".join(run.output.split())
    assert (k3s_starts(servers), kept(servers)) == (before, "")
    if not running:
        second.exec("systemctl", "start", "k3s")
        wait_until(lambda: len(Cluster(ordered).allocatable()) == len(boards), "K3s of the first server", 120)


def test_restore_that_fails_brings_all_servers_back(boards: list[Board], backup: Path) -> None:
    """K3s cannot take the snapshot."""
    first, second, *others = boards
    ordered, servers = [second, first, *others], boards[:SERVERS]
    program = "/usr/local/bin/k3s-restoring"
    second.exec(
        "sh", "-c", f"printf '#!/bin/sh\\necho no room >&2; exit 1\\n' > {program}; chmod 755 {program}"
    )
    given = json.dumps({"k3s_backup_file": str(backup), "__k3s_backup_k3s": program})
    run = site(ordered, "restore.yml", f"--extra-vars={given}")
    assert run.returncode != 0
    said = " ".join(run.output.split())
    for one in servers:
        assert f"{one.name}: its data from before are in place again." in said, run.output
    wait_until(lambda: members(second) == {one.name for one in servers}, "etcd with all members", 120)
    assert Cluster([first]).kubectl("get", "configmap", "after", "--output=name").strip() == "configmap/after"
    assert kept(servers) == ""


def test_all_servers_go_back_to_a_backup(boards: list[Board], backup: Path) -> None:
    first, second, *others = boards
    ordered = [second, first, *others]
    cluster = Cluster(ordered)
    changed(site(ordered, "restore.yml", f"--extra-vars=k3s_backup_file={backup}"))
    assert members(second) == {one.name for one in boards[:SERVERS]}
    maps = {
        one.name: Cluster([one]).kubectl("get", "configmaps", "--output=name").split()
        for one in boards[:SERVERS]
    }
    assert all("configmap/before" in there and "configmap/after" not in there for there in maps.values()), (
        maps
    )
    assert cluster.allocatable() == {one.name: 1 for one in boards}
    assert changed(site(ordered)) == {one.name: 0 for one in boards}


def test_server_that_is_reset_leaves_etcd_first_and_two_of_three_stay(boards: list[Board]) -> None:
    first, second, third, agent = boards
    ordered = [second, first, third, agent]
    two = site(ordered, "reset.yml", f"--limit={first.name},{third.name}")
    assert (two.returncode != 0, sum(one.changed for one in two.recap.values())) == (True, 0)
    assert "cannot leave the cluster: while " in " ".join(two.output.split()), two.output

    site(ordered, "reset.yml", f"--limit={second.name}").checked()  # the first one of the inventory
    assert members(first) == {first.name, third.name}
    assert second.name not in sites(first)
    assert second.exec("sh", "-c", "ls -d /var/lib/rancher/k3s 2>/dev/null || true") == ""

    last = site(ordered, "reset.yml", f"--limit={third.name}")
    assert (last.returncode != 0, sum(one.changed for one in last.recap.values())) == (True, 0)
    assert "these would be left: " in " ".join(last.output.split()), last.output
    back = [first, second, third, agent]
    changed(site(back))
    assert members(first) == {one.name for one in boards[:SERVERS]}
