# SPDX-License-Identifier: Apache-2.0
"""One server whose data are in the owner's etcd: installed, not backed up, upgraded if he has a backup."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster import Cluster, starts, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import later_bundle
from tests.lab import k3s, lab
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tools import debian
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "datastore"
ENDPOINT = "http://127.0.0.1:2379"
ETCD = ("systemd-run", "--unit=somebodys-etcd", "/usr/local/bin/etcd", "--data-dir=/var/lib/somebodys-etcd")
HEALTH = ("curl", "--silent", "--fail", f"{ENDPOINT}/health")
SETTINGS = {
    "gpu_verify_mode": "undisturbed",
    "k3s_server_config": k3s.SERVER_SETTINGS | {"datastore-endpoint": ENDPOINT},
}


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    with lab.fresh(LAB, ("agxorin-jp6",)) as (one,):
        docker(
            "cp",
            str(debian.program("etcd-server", "/usr/bin/etcd", ARCH)),
            f"{one.container}:/usr/local/bin/etcd",
        )
        one.exec(*ETCD)
        wait_until(lambda: one.exec(*HEALTH, check=False) != "", "the owner's etcd", 30)
        yield one


def run(playbook: str, **variables: Any) -> PlaybookRun:
    return run_playbook(LAB, playbook, f"--extra-vars={json.dumps(SETTINGS | variables)}")


def test_server_keeps_its_data_elsewhere(board: Board) -> None:
    run("site.yml").checked()
    assert Cluster([board]).allocatable() == {board.name: 1}
    assert board.exec("sh", "-c", "ls -d /var/lib/rancher/k3s/server/db/*", check=False) == ""
    run("site.yml").unchanged()


def test_backup_of_it_is_refused(board: Board, tmp_path: Path) -> None:
    key = tmp_path / "backup-key.asc"
    key.write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    old = "/var/lib/rancher/k3s/server/db"  # of a time before the database
    board.exec("sh", "-c", f"mkdir -p {old}; touch {old}/state.db")
    refused = run("backup.yml", k3s_backup_recipient=str(key))
    board.exec("rm", "-r", old)
    assert refused.returncode != 0
    assert "keeps its data in a database elsewhere (datastore-endpoint)" in " ".join(refused.output.split())


def test_upgrade_needs_a_confirmation_that_it_is_backed_up(board: Board) -> None:
    newer = later_bundle(LAB)
    before = starts([board])
    refused = run("upgrade.yml", jetson_k3s_bundle=str(newer))
    said = " ".join(refused.output.split())
    assert refused.returncode != 0
    assert "run the same command with -e jetson_k3s_confirm=datastore-backed-up. Nothing was changed" in said
    assert starts([board]) == before

    confirmed = {"jetson_k3s_bundle": str(newer), "jetson_k3s_confirm": "datastore-backed-up"}
    upgraded = run("upgrade.yml", **confirmed).checked()
    assert "You have confirmed that the database of datastore-endpoint is backed up." in " ".join(
        upgraded.output.split()
    )
    cluster = Cluster([board])
    assert set(cluster.kubelets().values()) == {k3s.named_version("2")}
    assert cluster.allocatable() == {board.name: 1}
