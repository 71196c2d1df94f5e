# SPDX-License-Identifier: Apache-2.0
"""A cluster loses the disk of its only server and comes back, while a job goes on on another board.

The data are SQLite's; test_several_servers.py has etcd's.
"""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from unittest import mock

import pytest

from tests.acceptance.cluster import Cluster, starts, wait_until
from tests.acceptance.openpgp import keyring
from tests.acceptance.playbook import PlaybookRun, run_playbook, state_home
from tests.lab import board, inventory, lab, lab_dir, ssh
from tests.lab.board import Board
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "backup"
TYPES = ("agxorin-jp6", "orinnano-jp6", "xaviernx-jp5")
BACKUPS = lab_dir(LAB) / "backups"
JOB = "train"


@pytest.fixture(scope="module")
def key() -> Iterator[Path]:
    with keyring() as public:
        yield public


@pytest.fixture(scope="module")
def boards(key: Path) -> Iterator[list[Board]]:
    with lab.fresh(LAB, TYPES) as up:
        run_playbook(LAB, "site.yml").checked()
        cluster = Cluster(up)
        cluster.hold_gpu(JOB, up[-1].name)
        wait_until(lambda: cluster.phase(JOB) == "Running", "the job", 60)
        yield up


def backup(key: Path, *arguments: str) -> PlaybookRun:
    """The key is relative to the directory of the command, as in the documents."""
    return run_playbook(LAB, "backup.yml", f"--extra-vars=k3s_backup_recipient={typed(key)}", *arguments)


def typed(path: Path) -> str:
    return os.path.relpath(path, CHECKOUT)


def restore(file: Path, *arguments: str, on_line: Callable[[str], object] | None = None) -> PlaybookRun:
    return run_playbook(
        LAB, "restore.yml", f"--extra-vars=k3s_backup_file={typed(file)}", *arguments, on_line=on_line
    )


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def newest() -> Path:
    return sorted(BACKUPS.iterdir())[-1]


def decrypted(file: Path) -> bytes:
    argv = ["gpg", "--batch", "--quiet", "--decrypt", str(file)]
    return subprocess.run(argv, capture_output=True, check=True).stdout


def config_maps(boards: list[Board]) -> set[str]:
    return set(Cluster(boards).kubectl("get", "configmaps", "--output=name").split()) & {
        "configmap/before",
        "configmap/after",
    }


def test_server_writes_a_backup_that_only_the_owner_can_read(boards: list[Board], key: Path) -> None:
    server = boards[0]
    Cluster(boards).kubectl("create", "configmap", "before")
    running = starts(boards)
    for _ in range(2):
        run = backup(key, "--extra-vars=k3s_backup_keep=1").checked()
    Cluster(boards).kubectl("create", "configmap", "after")
    assert starts(boards) == running
    (file,) = BACKUPS.iterdir()
    token = server.exec("cat", "/var/lib/rancher/k3s/server/token").strip()
    assert token not in run.output
    content = decrypted(file)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = archive.getnames()
        found = archive.extractfile("server/token")
        assert found is not None
        assert found.read().decode().strip() == token
    assert {"manifest.json", "server/db/state.db", "server/tls/server-ca.key", "node/password"} <= set(names)
    left = server.exec("sh", "-c", "ls -A /var/backups/jetson-k3s; ls -d /var/tmp/jetson-k3s-*", check=False)
    assert left == ""
    record = (state_home(LAB) / "jetson-k3s" / "backups.sha256").read_text().splitlines()
    assert record[-1] == f"{sha256(file)}  {file.name}"
    assert sha256(file) in "".join(run.output.split())


def test_a_backup_that_is_forged_damaged_or_foreign_is_refused_before_anything_stops(
    boards: list[Board], key: Path, tmp_path: Path
) -> None:
    running = starts(boards)
    forged = tmp_path / newest().name
    forged.write_bytes(encrypted(of_another_cluster(decrypted(newest())), key))
    run = restore(forged)
    assert run.returncode != 0
    said = " ".join(run.output.split())
    assert "this computer did not make it, or it was changed since" in said
    assert f"-e k3s_backup_accepted_sha256={sha256(forged)}" in said

    damaged = tmp_path / "damaged.tar.gz.gpg"
    content = bytearray(newest().read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    run = restore(damaged, f"--extra-vars=k3s_backup_accepted_sha256={sha256(damaged)}")
    assert run.returncode != 0
    assert "gpg does not decrypt it" in " ".join(run.output.split())

    foreign = tmp_path / "foreign.tar.gz"
    foreign.write_bytes(of_another_cluster(decrypted(newest())))
    run = restore(foreign, f"--extra-vars=k3s_backup_accepted_sha256={sha256(foreign)}")
    assert run.returncode != 0
    said = " ".join(run.output.split())
    assert f"{boards[1].name} is in a cluster with another CA than that of the backup" in said
    assert starts(boards) == running
    assert all(recap.changed == 0 for recap in run.recap.values()), run.output


def of_another_cluster(backup: bytes) -> bytes:
    """The same backup, but for the CA that its manifest names."""
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(backup)) as old, tarfile.open(fileobj=target, mode="w:gz") as new:
        for member in old:
            source = old.extractfile(member)
            assert source is not None
            text = source.read()
            if member.name == "manifest.json":
                text = json.dumps(json.loads(text) | {"ca": "0" * 64}).encode()
                member.size = len(text)
            new.addfile(member, io.BytesIO(text))
    return target.getvalue()


def encrypted(content: bytes, key: Path) -> bytes:
    """A file for the owner's key, as anybody can make it who has the public half."""
    argv = ["gpg", "--batch", "--quiet", "--trust-model=always", f"--recipient-file={key}", "--encrypt"]
    return subprocess.run(argv, input=content, capture_output=True, check=True).stdout


def left_in_clear(server: Board, temporary: Path) -> list[str]:
    """What a restore has left that was cut off: unpacked files on the server, files on the controller."""
    wait_until(
        lambda: not server.exec("pgrep", "-f", "BECOME-SUCCESS", check=False).strip(), "the module", 120
    )
    find = "find /var/lib/rancher /etc/rancher -name '*.restoring*'; find /var/backups/jetson-k3s -type f"
    found = server.exec("sh", "-c", find, check=False).split()
    copies = server.exec("sh", "-c", "sha256sum /var/lib/jetson-k3s/uploads/*/*", check=False).split()
    found += [one for one in copies[::2] if one != sha256(newest())]
    return found + [str(path) for path in temporary.rglob("*") if path.is_file()]


def test_server_whose_disk_is_lost_comes_back_and_the_job_has_gone_on(boards: list[Board]) -> None:
    server = boards[0]
    job = Cluster(boards).started(JOB)
    before = starts(boards[1:])
    board.lose_disks(server)
    ssh.close_connections(inventory.control_directory(LAB))
    lab.up(LAB, TYPES)

    lost = run_playbook(LAB, "site.yml")
    assert "server-new" in lost.output, lost.output
    restore(newest(), "--check").checked()

    restore(newest()).checked()
    assert Cluster(boards).allocatable() == {each.name: 1 for each in boards}
    assert Cluster(boards).started(JOB) == job
    assert starts(boards[1:]) >= {entry for entry in before if "k8s_main_train" in entry}
    assert config_maps(boards) == {"configmap/before"}
    run_playbook(LAB, "site.yml").unchanged()


def test_server_goes_back_to_its_backup_after_runs_that_were_cut_off(
    boards: list[Board], tmp_path: Path
) -> None:
    server = boards[0]
    Cluster(boards).kubectl("create", "configmap", "after")
    for task in ("Check the backup on the server", "Unpack the backup and restore its files"):
        moment = f"TASK [jetson_k3s.cluster.k3s_backup : {task}"
        with mock.patch.dict(os.environ, {"TMPDIR": str(tmp_path)}):
            cut_off = restore(newest(), on_line=methodcaller("startswith", moment))
        assert cut_off.returncode != 0
        assert moment in cut_off.output, cut_off.output
        assert left_in_clear(server, tmp_path) == []
    run = restore(newest()).checked()
    assert config_maps(boards) == {"configmap/before"}
    assert Cluster(boards).phase(JOB) == "Running"
    kept = server.exec("sh", "-c", "ls -d /var/lib/rancher/k3s/server.before-*").split()[-1]
    assert server.exec("stat", "--format=%a %U", kept).strip() == "700 root"
    assert server.exec("sh", "-c", "find /var/lib/jetson-k3s/uploads -type f", check=False) == ""
    assert f"The data from before are in {kept}" in " ".join(run.output.split())


def test_an_agent_that_the_backup_does_not_know_registers_again(boards: list[Board], key: Path) -> None:
    agent = boards[1]
    run_playbook(LAB, "forget.yml", f"--limit={agent.name}").checked()
    backup(key).checked()
    agent.exec("systemctl", "restart", "k3s-agent")  # it joins again
    wait_until(lambda: agent.name in Cluster(boards).allocatable(), "the node again", 60)
    restore(newest()).checked()
    assert Cluster(boards).allocatable() == {each.name: 1 for each in boards}
