# SPDX-License-Identifier: Apache-2.0
"""Backups of a K3s server: consistent data, refused damage, the record on the controller, and killed runs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_archive as archive
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_gpg, private_directory
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_backup as made
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_backup_record as record_module
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_restore

from tests.ansible_core import CORES
from tests.planted import JOURNAL, leaked
from tests.unit.roles.places import Data
from tests.unit.roles.playing import play_text

FACTS = {
    "server": "jetson-1", "k3s_version": "v1.33.5+k3s1", "datastore": "sqlite",
    "created": "2026-01-02T03:04:05Z", "ca": "c" * 64,
}  # fmt: skip
SECRET = "K10-a-secret-of-the-cluster"
KINE = "CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, value BLOB)"


def write_files(directory: Path) -> Path:
    for name, text in {
        "server/token": SECRET,
        "server/db/state.db": "data",
        "etc/config.yaml": "theirs",
        "node/password": "p",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def packed(files: Path, **facts: str) -> bytes:
    stream = io.BytesIO()
    archive.write(stream, str(files), FACTS | facts)
    return stream.getvalue()


def database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(KINE)
    connection.execute("INSERT INTO kine (name, value) VALUES ('/registry/a', x'00ff')")
    return connection


def encrypted(content: bytes, key: Path) -> bytes:
    """A file for the owner's key, as anybody can make it."""
    argv = ["gpg", "--batch", "--quiet", "--trust-model=always", f"--recipient-file={key}", "--encrypt"]
    return subprocess.run(argv, input=content, capture_output=True, check=True).stdout


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files")


gpg = shutil.which("gpg")
Spoil = Callable[[bytes], bytes]


def rewritten(change: Callable[[str, bytes], list[tuple[str, bytes]]]) -> Spoil:
    """Puts no, one or several members into the place of each member of a backup."""

    def spoil(content: bytes) -> bytes:
        target, source = io.BytesIO(), io.BytesIO(content)
        with tarfile.open(fileobj=source) as old, tarfile.open(fileobj=target, mode="w:gz") as new:
            for member in old:
                file = old.extractfile(member)
                assert file is not None
                for name, text in change(member.name, file.read()):
                    member.name, member.size = name, len(text)
                    new.addfile(member, io.BytesIO(text))
        return target.getvalue()

    return spoil


def without(name: str, *other: bytes) -> Spoil:
    return rewritten(lambda path, text: [(path, one) for one in other] if path == name else [(path, text)])


def saying(old: str, new: str) -> Spoil:
    return rewritten(lambda path, text: [(path, text.replace(old.encode(), new.encode()))])


def elsewhere(name: str) -> Spoil:
    old = "server/token"
    return rewritten(
        lambda path, text: [(path.replace(old, name), text.replace(old.encode(), name.encode()))]
    )


DAMAGES: dict[str, tuple[Spoil, str]] = {
    "empty": (lambda content: b"", "damaged or cut off"),
    "cut off": (lambda content: content[: len(content) // 2], "damaged or cut off"),
    "text": (lambda content: b"no tar", "damaged or cut off"),
    "no manifest": (without("manifest.json"), "does not begin with"),
    "broken manifest": (without("manifest.json", b"{}"), "cannot be read"),
    "missing file": (without("server/token"), "server/token is missing"),
    "other content": (without("server/token", SECRET[::-1].encode()), "in it was changed"),
    "other size": (without("server/token", b"K11"), "has another size"),
    "twice": (without("server/token", SECRET.encode(), SECRET.encode()), "occurs twice"),
    "other format": (saying("backup/1", "backup/9"), "it has the format jetson-k3s-backup/9"),
    "way out": (elsewhere("server/../../x"), "names the file"),
    "absolute": (elsewhere("/etc/x"), "names the file"),
    "no token": (elsewhere("server/agent-token"), "does not have the token"),
    "another version": (saying("v1.33.5+k3s1", "v1; x"), "no valid k3s_version"),
    "another time": (saying("2026-01-02T", "{{ x }}T"), "no valid created"),
    "other data": (saying("sqlite", "etcd"), "the data of one data store"),
} | {
    name: (elsewhere(name), "which no backup has")
    for name in (
        *("etc/config.yaml.d/50-jetson-k3s.yaml", "etc/config.yaml.d/sub/x.yaml", "etc/config.yaml.d/x.sh"),
        *("etc/k3s.yaml", "node/other", "server/agent/token", "server/db/other.db"),
        *("server/tls/./x", "server/tls//x"),
    )
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(files: Path, tmp_path: Path, damage: str) -> None:
    spoil, message = DAMAGES[damage]
    for target in (None, str(tmp_path / "target")):
        if target:
            Path(target).mkdir()
        with pytest.raises(archive.ArchiveError, match=message):
            archive.read(io.BytesIO(spoil(packed(files))), target)
    assert not (tmp_path / "etc").exists()


def test_sqlite_is_copied_as_it_is_at_one_moment(tmp_path: Path) -> None:
    with contextlib.closing(database(tmp_path / "state.db")) as k3s:
        k3s.execute("BEGIN IMMEDIATE")  # K3s is about to write
        k3s.execute("INSERT INTO kine (name, value) VALUES ('/registry/b', x'01')")
        made.copy_sqlite(str(tmp_path / "state.db"), str(tmp_path / "copy.db"))
        k3s.execute("COMMIT")
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT name, value FROM kine").fetchall() == [("/registry/a", b"\0\xff")]
        assert copy.execute("SELECT seq FROM sqlite_sequence").fetchall() == [(1,)]


def test_a_database_without_objects_is_no_backup(tmp_path: Path) -> None:
    with contextlib.closing(database(tmp_path / "state.db")) as k3s:
        k3s.execute("DELETE FROM kine")
        with pytest.raises(made.BackupError, match="not sound"):
            made.copy_sqlite(str(tmp_path / "state.db"), str(tmp_path / "copy.db"))


def test_failed_snapshot_is_reported_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(made.BackupError, match="has failed: no disk") as error:
        made.copy_etcd(lambda _: (1, "", f"no disk\n{JOURNAL}"), str(tmp_path))
    assert leaked(str(error.value)) == []


@pytest.mark.parametrize(
    ("name", "text", "elsewhere"),
    [
        ("config.yaml", "datastore-endpoint: postgres://a:b@c/k3s\n", True),
        ("config.yaml.d/50-jetson-k3s.yaml", "docker: true\n'datastore-endpoint': mysql://a\n", True),
        ("config.yaml", "{docker: true, datastore-endpoint: https://etcd:2379}", True),
        ("k3s.env", "K3S_DATASTORE_ENDPOINT='postgres://a'\n", True),
        ("unit", "argv[]=/usr/local/bin/k3s server --datastore-endpoint=postgres://a ;", True),
        ("config.yaml", "# datastore-endpoint: postgres://a\ndatastore-endpoint: ''\n", False),
        ("config.yaml", "datastore-endpoint:\ndatastore-cafile: /a\n", False),
        ("registries.yaml", "datastore-endpoint: postgres://a\n", False),
        ("k3s.env", "K3S_DATASTORE_ENDPOINT=\n# K3S_DATASTORE_ENDPOINT=a\n", False),
    ],
)
def test_data_elsewhere_are_not_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, elsewhere: bool
) -> None:
    (tmp_path / "config.yaml.d").mkdir()
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(made, "CONFIG", str(tmp_path))
    monkeypatch.setattr(made, "ENVIRONMENT", (str(tmp_path / "k3s.env"),))

    def kind() -> str:
        found: str = made.datastore(str(tmp_path), lambda argv: (0, text if name == "unit" else "", ""))
        return found

    with pytest.raises(made.BackupError, match="elsewhere" if elsewhere else "never started here"):
        kind()
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "state.db").touch()  # also one that is left from before
    with pytest.raises(made.BackupError, match="elsewhere") if elsewhere else contextlib.nullcontext():
        assert kind() == "sqlite"
    (tmp_path / "db" / "etcd").mkdir()  # K3s uses it before all else
    assert kind() == "etcd"


BEFORE = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {k3s_plan: {external_datastore: "{{ elsewhere }}"}}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s_backup, tasks_from: before}
"""


@pytest.mark.acceptance
@pytest.mark.parametrize("release", CORES)
def test_change_needs_a_backup_or_a_confirmation_that_there_is_one(tmp_path: Path, release: str) -> None:
    run = play_text(tmp_path, BEFORE, variables={"elsewhere": True}, fails=True, line=release)
    assert "no backup. Back it up, and keep a copy of /var/lib/rancher/k3s/server/token" in run.said
    assert "-e jetson_k3s_confirm=datastore-backed-up. Nothing was changed" in run.said
    for confirm in (["datastore-backed-up"], "datastore-backed-up"):
        given = {"elsewhere": True, "jetson_k3s_confirm": confirm, "k3s_backup_keep": 0}
        run = play_text(tmp_path, BEFORE, variables=given, line=release)
        assert "You have confirmed that the database of datastore-endpoint is backed up." in run.said
    # With the server's own data the confirmation changes nothing: a backup begins.
    run = play_text(tmp_path, BEFORE, variables=given | {"elsewhere": False}, fails=True, line=release)
    assert "k3s_backup_keep is 0: a number of backups, 1 or more, is needed. No backup was made." in run.said


def test_remains_of_a_killed_backup_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "FETCHED_FROM", str(tmp_path / "var-tmp"))
    never_fetched = tmp_path / "var-tmp" / "jetson-k3s-backup-1"
    never_fetched.mkdir(parents=True)
    directory = tmp_path / "backups"
    (directory / ".unfinished-1").mkdir(parents=True)
    (directory / "k3s-jetson-1.tar.gz").touch()
    with made.staging(str(directory)) as stage:
        assert {path.name for path in directory.iterdir()} == {"k3s-jetson-1.tar.gz", Path(stage).name}
        assert directory.stat().st_mode & 0o777 == 0o700
        assert not never_fetched.exists()
    assert [path.name for path in directory.iterdir()] == ["k3s-jetson-1.tar.gz"]


@pytest.fixture
def unpack(files: Path, tmp_path: Path, key: Path) -> Callable[[Data], None]:
    """Unpacks an encrypted backup as the module does that restores it, with other parameters."""
    path = tmp_path / "backup.tar.gz.gpg"
    (files / "server" / "token").write_text(FULL_TOKEN)
    path.write_bytes(encrypted(packed(files), key))
    _, session_key = record_module.opened(str(path), gpg)
    params = {"archive": str(path), "sha256": hash_of(path), "token": None, "session_key": session_key}

    def run(changes: Data) -> None:
        with k3s_restore.unpacking(str(tmp_path / "k3s" / "server")) as new:
            k3s_restore.unpack(params | changes, new, gpg)

    return run


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


FULL_TOKEN = f"K10{'0' * 64}::server:secret\n"


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({}, None),
        ({"token": FULL_TOKEN}, None),
        ({"token": "secret"}, None),
        ({"token": "newer"}, "k3s_token is not the token that this cluster had"),
        ({"sha256": "0" * 64}, "is not the backup that was read on the controller"),
        ({"session_key": "9:" + "0" * 64}, "gpg does not decrypt it"),
    ],
)
def test_another_file_or_token_is_refused_before_the_restore(
    unpack: Callable[[Data], None], tmp_path: Path, changes: Data, refusal: str | None
) -> None:
    with pytest.raises(Exception, match=refusal) if refusal else contextlib.nullcontext():
        unpack(changes)
    assert list((tmp_path / "k3s").iterdir()) == []


def test_gpg_that_was_killed_at_the_end_is_an_error(files: Path, tmp_path: Path) -> None:
    path, killed = tmp_path / "backup.tar.gz", tmp_path / "gpg"
    path.write_bytes(packed(files))
    killed.write_text('#!/bin/sh\nfor file; do :; done\ncat "$file"\nkill -9 $$\n')
    killed.chmod(0o755)
    with pytest.raises(archive.ArchiveError, match=r"gpg does not decrypt it: exit status -9$"):
        k3s_gpg.decrypt(str(killed), str(path), archive.read)


def test_every_file_comes_back_as_it_was_and_for_root_alone(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    manifest = archive.read(io.BytesIO(packed(files)), str(target))
    assert {key: manifest[key] for key in FACTS} == FACTS
    assert SECRET not in json.dumps(manifest)
    for path in (one for one in files.rglob("*") if one.is_file()):
        copy = target / path.relative_to(files)
        assert (copy.read_text(), copy.stat().st_mode & 0o777) == (path.read_text(), 0o600)


def test_disk_without_room_is_named_before_it_is_full(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"total": 10**9, "free": 5 * 10**7})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="50 MB are free on this disk"):
        archive.read(io.BytesIO(packed(files)), str(tmp_path / "target"))


@pytest.mark.parametrize(
    ("server", "owners", "password"),
    # On the same board a reinstalled system has neither; on another one the owner's newer file stays.
    [(os.uname().nodename.lower(), "theirs", "p"), ("of-another-name", "newer", None)],
)
def test_owners_files_and_the_nodes_password_come_back_where_they_belong(
    files: Path, tmp_path: Path, server: str, owners: str, password: str | None
) -> None:
    config, node = tmp_path / "config", tmp_path / "node/password"
    vars(k3s_restore).update(CONFIG=str(config), NODE_PASSWORD=str(node))
    if owners == "newer":
        config.mkdir()
        (config / "config.yaml").write_text("newer")
        node.parent.mkdir()
        node.write_text("of another node")
    path = tmp_path / "backup.tar.gz"
    path.write_bytes(packed(files, server=server))
    data = str(tmp_path / "k3s/server")
    params = {"archive": str(path), "sha256": hash_of(path), "session_key": "", "token": None}
    with k3s_restore.unpacking(data) as new:
        manifest = k3s_restore.unpack(params, new, None)
        k3s_restore.place_backup({"data": data, "stamp": "1", "running": False}, new, manifest)
    assert (Path(data) / "token").read_text() == SECRET
    assert (config / "config.yaml").read_text() == owners
    assert node.read_text() == (password or "of another node")


NAME, OTHER_NAME = "k3s-jetson-1-20260102T030405Z.tar.gz.gpg", "k3s-jetson-1-20260103T030405Z.tar.gz.gpg"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    path = str(tmp_path / "state" / "jetson-k3s" / "backups.sha256")
    for name in (NAME, OTHER_NAME):
        record_module.add(path, sha256(name), name)
    return path


def test_backup_that_is_not_encrypted_is_unpacked_as_it_is(files: Path, tmp_path: Path) -> None:
    path, new = tmp_path / "backup.tar.gz", tmp_path / "new"
    path.write_bytes(packed(files))
    new.mkdir()
    manifest, session_key = record_module.opened(str(path), None)
    params = {"archive": str(path), "sha256": hash_of(path), "token": None, "session_key": session_key}
    assert k3s_restore.unpack(params, str(new), None) == manifest
    assert (new / "server/token").read_text() == SECRET


def test_record_is_one_that_sha256sum_reads_and_of_this_user_alone(recorded: str) -> None:
    assert Path(recorded).read_text() == f"{sha256(NAME)}  {NAME}\n{sha256(OTHER_NAME)}  {OTHER_NAME}\n"
    assert Path(recorded).stat().st_mode & 0o777 == 0o600
    assert Path(recorded).parent.stat().st_mode & 0o777 == 0o700
    record_module.check(recorded, f"/media/stick/{NAME}", sha256(NAME), None)


def test_changed_backup_is_refused_with_the_way_to_accept_it(recorded: str) -> None:
    forged = sha256("forged")
    words = f"did not make it, or it was changed since.* -e k3s_backup_accepted_sha256={forged}$"
    with pytest.raises(archive.ArchiveError, match=words):
        record_module.check(recorded, f"backups/{NAME}", forged, None)
    record_module.check(recorded, f"backups/{NAME}", forged, forged)


def test_old_backup_under_the_name_of_a_newer_one_is_refused(recorded: str) -> None:
    with pytest.raises(archive.ArchiveError, match=f"under another name, {NAME}"):
        record_module.check(recorded, f"backups/{OTHER_NAME}", sha256(NAME), None)


@pytest.mark.parametrize("accepted", [sha256("another"), "true", "yes"])
def test_acceptance_names_the_very_file(recorded: str, accepted: str) -> None:
    for found in (sha256(NAME), sha256("forged")):
        with pytest.raises(archive.ArchiveError, match=f"its SHA-256 is {found}, not "):
            record_module.check(recorded, NAME, found, accepted)


def test_controller_without_a_record_refuses(tmp_path: Path) -> None:
    with pytest.raises(archive.ArchiveError, match="is not recorded in"):
        record_module.check(str(tmp_path / "none"), NAME, sha256(NAME), None)


def test_record_that_others_can_write_proves_nothing(recorded: str) -> None:
    Path(recorded).chmod(0o620)
    with pytest.raises(archive.ArchiveError, match="can be written by other users"):
        record_module.check(recorded, NAME, sha256(NAME), None)


def test_line_that_was_cut_off_spoils_no_other(recorded: str) -> None:
    with Path(recorded).open("a") as stream:
        stream.write(sha256("cut off")[:20])
    record_module.add(recorded, sha256("next"), "next.gpg")
    record_module.check(recorded, "next.gpg", sha256("next"), None)
    record_module.check(recorded, NAME, sha256(NAME), None)


@pytest.mark.parametrize(
    ("hashed", "name"),
    [(sha256("x") + "\n" + sha256("y"), NAME), ("", NAME), (sha256("x"), "../x"), (sha256("x"), "a\nb")],
)
def test_answer_of_a_board_adds_one_line_or_none(recorded: str, hashed: str, name: str) -> None:
    before = Path(recorded).read_text()
    with pytest.raises(archive.ArchiveError, match="cannot be recorded"):
        record_module.add(recorded, hashed, name)
    assert Path(recorded).read_text() == before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_module_that_is_ended_leaves_no_secret(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "new-left-by-a-power-cut").mkdir()
    process = os.fork()
    if process == 0:
        try:
            with private_directory.private_directory(str(tmp_path), "new-") as path:
                Path(path, "secret").touch()
                os.kill(os.getpid(), number)
        finally:
            os._exit(0)
    os.waitpid(process, 0)
    assert list(tmp_path.iterdir()) == []


CLOCK = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: jetson_k3s.cluster.k3s_backup, tasks_from: clock}
"""


@pytest.mark.parametrize(
    ("there", "refused"),
    [
        ([], False),
        (["k3s-localhost-20260101T000000Z.tar.gz.gpg", "k3s-jetson-9-20380101T000000Z.tar.gz"], False),
        (["k3s-localhost-20260101T000000Z.tar.gz", "k3s-localhost-20380119T031407Z.tar.gz.gpg"], True),
    ],
)
def test_backup_of_a_wrong_clock_is_not_made(tmp_path: Path, there: list[str], refused: bool) -> None:
    """As the oldest one it would be deleted, or it would stay the newest."""
    backups = tmp_path / "backups"
    backups.mkdir()
    for name in there:
        (backups / name).touch()
    name = "k3s-localhost-20260102T030405Z.tar.gz.gpg"
    variables = {"__k3s_backup_pruned": str(backups), "__k3s_backup_name": name}
    ran = play_text(tmp_path, CLOCK, variables=variables, fails=refused)
    newest = f"{backups}/{there[-1]}" if there else ""
    words = f"{newest} is from a later time than this one, {name}. Set the clock of the computer"
    assert (words in ran.said) is refused
    assert sorted(path.name for path in backups.iterdir()) == sorted(there)
