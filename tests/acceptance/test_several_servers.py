# SPDX-License-Identifier: Apache-2.0
"""Three servers share an etcd: any of them may be down, and one that was flashed again joins again."""

import json
from collections.abc import Sequence

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.openpgp import keyring
from tests.acceptance.playbook import PlaybookRun, run_playbook
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
    boards: Sequence[Board], playbook: str = "site.yml", *arguments: str, site: str = "north"
) -> PlaybookRun:
    """Run a playbook; the first three boards are servers. `site` is a label of all nodes."""
    file = lab_dir(LAB) / "servers.ini"
    file.write_text(inventory.render(LAB, boards, SERVERS))
    given = json.dumps({"gpu_verify_mode": "undisturbed", "k3s_node_labels": {"site": site}})
    return run_playbook(LAB, playbook, f"--extra-vars={given}", *arguments, inventory=file)


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


def test_servers_join_one_after_the_other_and_serve_the_gpus(boards: list[Board]) -> None:
    assert all(changed(site(boards)).values())
    assert members(boards[0]) == {one.name for one in boards[:SERVERS]}
    for one in boards[:SERVERS]:
        assert Cluster([one]).allocatable() == {each.name: 1 for each in boards}


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
        assert (f"{gone.name} does not answer, so {there[0].name} is asked" in run.output) == (down == 0)
        assert sites(there[0]) == {one.name: f"without-{down}" for one in there} | {
            gone.name: sites(there[0])[gone.name]
        }
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
    assert changed(site(ordered, "forget.yml", f"--limit={first.name}")) == {first.name: 1}
    assert members(second) == {second.name, others[0].name}
    changed(site(ordered))
    assert members(second) == {one.name for one in boards[:SERVERS]}
    assert (
        Cluster([first]).kubectl("get", "configmap", "before", "--output=name").strip() == "configmap/before"
    )
    assert Cluster([first]).allocatable() == {one.name: 1 for one in boards}
    assert changed(site(ordered)) == {one.name: 0 for one in boards}


def test_all_servers_go_back_to_a_backup(boards: list[Board]) -> None:
    first, second, *others = boards
    ordered = [second, first, *others]
    cluster = Cluster(ordered)
    directory = lab_dir(LAB) / "backups"
    with keyring() as key:
        given = json.dumps({"k3s_backup_recipient": str(key), "k3s_backup_directory": str(directory)})
        changed(site(ordered, "backup.yml", f"--extra-vars={given}"))
        cluster.kubectl("create", "configmap", "after")
        (file,) = directory.glob("*.gpg")
        changed(site(ordered, "restore.yml", f"--extra-vars=k3s_backup_file={file}"))
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
