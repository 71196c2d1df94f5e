# SPDX-License-Identifier: Apache-2.0
"""Backups of a K3s server: data that are written meanwhile, damage of every kind, and the way back."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.planted import JOURNAL, leaked
from tests.unit.roles.loading import load

archive = load("k3s_backup/module_utils/k3s_archive.py")
made = load("k3s_backup/library/k3s_backup.py")
FACTS = {
    "server": "jetson-1",
    "k3s_version": "v1.33.5+k3s1",
    "datastore": "sqlite",
    "created": "2026-01-02T03:04:05Z",
    "ca": "c" * 64,
}
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
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("k3s_backup/library/k3s_restore.py")
    monkeypatch.setattr(module, "CONFIG", str(tmp_path / "etc"))
    monkeypatch.setattr(module, "NODE_PASSWORD", str(tmp_path / "node" / "password"))
    return module


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files")


def test_every_file_comes_back_as_it_was_and_for_root_alone(files: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    manifest = archive.read(io.BytesIO(packed(files)), str(target))
    assert {key: manifest[key] for key in FACTS} == FACTS
    for path in (one for one in files.rglob("*") if one.is_file()):
        copy = target / path.relative_to(files)
        assert copy.read_text() == path.read_text()
        assert copy.stat().st_mode & 0o777 == 0o600


gpg = shutil.which("gpg")
Change = Callable[[tarfile.TarInfo, bytes], bytes | None]
Spoil = Callable[[bytes], bytes]


def changed(change: Change) -> Spoil:
    """Gives the members of a backup other content or, for None, leaves them out."""

    def spoil(content: bytes) -> bytes:
        target = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(content)) as old,
            tarfile.open(fileobj=target, mode="w:gz") as new,
        ):
            for member in old:
                source = old.extractfile(member)
                assert source is not None
                text = change(member, source.read())
                if text is not None:
                    member.size = len(text)
                    new.addfile(member, io.BytesIO(text))
        return target.getvalue()

    return spoil


def without(name: str, other: bytes | None = None) -> Spoil:
    return changed(lambda member, text: other if member.name == name else text)


def saying(old: str, new: str) -> Spoil:
    return changed(lambda _, text: text.replace(old.encode(), new.encode()))


def elsewhere(name: str) -> Spoil:
    def change(member: tarfile.TarInfo, text: bytes) -> bytes:
        member.name = member.name.replace("server/token", name)
        return text.replace(b"server/token", name.encode())

    return changed(change)


def twice(content: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=target, mode="w:gz") as new:
        for member in old:
            for _ in range(1 + (member.name == "server/token")):
                new.addfile(member, old.extractfile(member))
    return target.getvalue()


DAMAGES: dict[str, tuple[Spoil, str]] = {
    "empty": (lambda content: b"", "damaged or cut off"),
    "cut off": (lambda content: content[: len(content) // 2], "damaged or cut off"),
    "text": (lambda content: b"no tar", "damaged or cut off"),
    "no manifest": (without("manifest.json"), "does not begin with"),
    "broken manifest": (without("manifest.json", b"{}"), "cannot be read"),
    "missing file": (without("server/token"), "server/token is missing"),
    "other content": (without("server/token", SECRET[::-1].encode()), "not what was written"),
    "other size": (without("server/token", b"K11"), "has another size"),
    "twice": (twice, "is there twice"),
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
        "etc/config.yaml.d/50-jetson-k3s.yaml",
        "etc/config.yaml.d/sub/x.yaml",
        "etc/config.yaml.d/x.sh",
        "etc/k3s.yaml",
        "node/other",
        "server/agent/token",
        "server/db/other.db",
        "server/tls/./x",
        "server/tls//x",
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


def test_a_disk_without_room_is_said_before_it_is_full(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"total": 10**9, "free": 5 * 10**7})
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="50 MB are free on this disk"):
        archive.read(io.BytesIO(packed(files)), str(tmp_path / "target"))


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


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content, None),
        (lambda content: content[:-1], "cut off"),
        (lambda content: b"x" + content[1:], "does not have the hash"),
    ],
)
def test_a_snapshot_of_etcd_has_its_hash(
    tmp_path: Path, spoil: Callable[[bytes], bytes], message: str | None
) -> None:
    content = bytes(4096)
    path = tmp_path / "snapshot"
    path.write_bytes(spoil(content + hashlib.sha256(content).digest()))
    with pytest.raises(made.BackupError, match=message) if message else contextlib.nullcontext():
        made.check_etcd(str(path))


def test_a_snapshot_that_k3s_does_not_make_is_told_without_secrets(tmp_path: Path) -> None:
    with pytest.raises(made.BackupError, match="has failed: no disk") as error:
        made.copy_etcd(lambda _: (1, "", f"no disk\n{JOURNAL}"), str(tmp_path))
    assert leaked(str(error.value)) == []


def test_data_elsewhere_are_not_backed_up(tmp_path: Path) -> None:
    with pytest.raises(made.BackupError, match="in a database elsewhere"):
        made.datastore(str(tmp_path))
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "state.db").touch()
    assert made.datastore(str(tmp_path)) == "sqlite"
    (tmp_path / "db" / "etcd").mkdir()  # K3s has moved the data over from SQLite
    assert made.datastore(str(tmp_path)) == "etcd"


def test_what_a_killed_backup_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def arrived(files: Path, tmp_path: Path, key: Path) -> Callable[..., dict[str, Any]]:
    """Encrypts a backup and gives the parameters of the module that restores it."""
    seal = load("k3s_backup/library/k3s_backup_seal.py")

    def encrypt(**changes: str) -> dict[str, Any]:
        facts = {name: text for name, text in changes.items() if name in FACTS}
        path = tmp_path / "backup.tar.gz.gpg"
        path.write_bytes(encrypted(packed(files, **facts), key))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        session = seal.session_key(gpg, str(path))
        params = {"archive": str(path), "sha256": sha256, "session_key": session, "token": None}
        return params | {name: text for name, text in changes.items() if name not in FACTS}

    return encrypt


@pytest.fixture
def restore(
    restored: ModuleType, arrived: Callable[..., dict[str, Any]], tmp_path: Path
) -> Callable[..., tuple[Path, str | None, str | None]]:
    """Restores a backup; gives the data's path, the snapshot's, and that of the old data."""

    def run(**facts: Any) -> tuple[Path, str | None, str | None]:
        data = tmp_path / "k3s" / "server"
        with restored.unpacking(str(data)) as new:
            snapshot, old = restored.place(str(data), new, restored.unpack(arrived(**facts), new, gpg))
        return data, snapshot, old

    return run


def test_a_server_that_goes_back_keeps_its_data_and_its_owners_files(
    restored: ModuleType, restore: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "config.yaml").write_text("newer")
    data = tmp_path / "k3s" / "server"
    data.mkdir(parents=True)
    (data / "token").write_text("of today")
    _, _, old = restore(server="another-name")
    assert (Path(old) / "token").read_text() == "of today"
    assert (data / "token").read_text() == SECRET
    assert (tmp_path / "etc" / "config.yaml").read_text() == "newer"

    restored.take_back(str(data), old)
    assert (data / "token").read_text() == "of today"
    assert [path.name for path in data.parent.iterdir()] == ["server"]


def test_the_manifest_names_no_secret(files: Path) -> None:
    manifest = archive.read(io.BytesIO(packed(files)))
    assert SECRET not in json.dumps(manifest)


def test_a_token_that_was_changed_since_is_found_before_anything_stops(
    restored: ModuleType, arrived: Callable[..., dict[str, Any]], files: Path, tmp_path: Path
) -> None:
    full = f"K10{'0' * 64}::server:secret\n"
    (files / "server" / "token").write_text(full)
    params = arrived()
    data = str(tmp_path / "k3s" / "server")
    for token in (None, full, "secret"):
        with restored.unpacking(data) as new:
            restored.unpack(params | {"token": token}, new, gpg)
    wrong = pytest.raises(restored.ArchiveError, match="k3s_token is not the token that this cluster had")
    with wrong, restored.unpacking(data) as new:
        restored.unpack(params | {"token": "newer"}, new, gpg)
    assert list((tmp_path / "k3s").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("sha256", "0" * 64, "is not the backup that was read on the controller"),
        ("session_key", "9:" + "0" * 64, "gpg does not decrypt it"),
    ],
)
def test_a_server_takes_no_other_file_than_the_controller_has_read(
    restore: Callable[..., Any], tmp_path: Path, name: str, value: str, words: str
) -> None:
    with pytest.raises(Exception, match=words):
        restore(**{name: value})
    assert list((tmp_path / "k3s").iterdir()) == []
