# SPDX-License-Identifier: Apache-2.0
"""Backups of a K3s server: data that are written meanwhile, damage of every kind, and the way back."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.roles.conftest import Load

FACTS = {"server": "jetson-1", "k3s_version": "v1.33.5+k3s1", "datastore": "sqlite", "created": "", "ca": "c"}
KINE = "CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, value BLOB)"


@pytest.fixture
def archive(load: Load) -> ModuleType:
    return load("k3s_backup/module_utils/k3s_archive.py")


@pytest.fixture
def made(load: Load) -> ModuleType:
    return load("k3s_backup/library/k3s_backup.py")


@pytest.fixture
def restored(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("k3s_backup/library/k3s_restore.py")
    monkeypatch.setattr(module, "CONFIG", str(tmp_path / "etc"))
    monkeypatch.setattr(module, "NODE_PASSWORD", str(tmp_path / "node" / "password"))
    return module


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What is backed up."""
    directory = tmp_path / "files"
    for name, text in {
        "server/token": "K10",
        "server/db/state.db": "data",
        "etc/config.yaml": "theirs",
        "node/password": "p",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def packed(archive: ModuleType, files: Path, **facts: str) -> bytes:
    stream = io.BytesIO()
    archive.write(stream, str(files), FACTS | facts)
    return stream.getvalue()


def test_every_file_comes_back_as_it_was_and_for_root_alone(
    archive: ModuleType, files: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    manifest = archive.read(io.BytesIO(packed(archive, files)), str(target))
    assert {key: manifest[key] for key in FACTS} == FACTS
    for path in (one for one in files.rglob("*") if one.is_file()):
        copy = target / path.relative_to(files)
        assert copy.read_text() == path.read_text()
        assert copy.stat().st_mode & 0o777 == 0o600


Change = Callable[[tarfile.TarInfo, bytes], bytes | None]


def changed(content: bytes, change: Change) -> bytes:
    """A backup whose members have other content or, for None, are left out."""
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=target, mode="w:gz") as new:
        for member in old:
            source = old.extractfile(member)
            assert source is not None
            text = change(member, source.read())
            if text is not None:
                member.size = len(text)
                new.addfile(member, io.BytesIO(text))
    return target.getvalue()


def of(name: str, other: bytes | None) -> Change:
    """One member has other content."""
    return lambda member, text: other if member.name == name else text


def elsewhere(name: str) -> Change:
    """The token lies elsewhere, and the manifest says so as well."""

    def change(member: tarfile.TarInfo, text: bytes) -> bytes:
        member.name = member.name.replace("server/token", name)
        return text.replace(b"server/token", name.encode())

    return change


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "damaged or cut off"),
    "cut off": (lambda content: content[: len(content) // 2], "damaged or cut off"),
    "text": (lambda content: b"no tar", "damaged or cut off"),
    "no manifest": (lambda content: changed(content, of("manifest.json", None)), "does not begin with"),
    "broken manifest": (lambda content: changed(content, of("manifest.json", b"{}")), "cannot be read"),
    "missing file": (lambda content: changed(content, of("server/token", None)), "server/token is missing"),
    "other content": (lambda content: changed(content, of("server/token", b"K11")), "not what was written"),
    "other format": (
        lambda content: changed(content, lambda _, text: text.replace(b"backup/1", b"backup/9")),
        "it has the format jetson-k3s-backup/9",
    ),
    "way out": (lambda content: changed(content, elsewhere("server/../../x")), "names the file"),
    "absolute": (lambda content: changed(content, elsewhere("/etc/x")), "names the file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(archive: ModuleType, files: Path, tmp_path: Path, damage: str) -> None:
    spoil, message = DAMAGES[damage]
    for target in (None, str(tmp_path / "target")):
        if target:
            Path(target).mkdir()
        with pytest.raises(archive.ArchiveError, match=message):
            archive.read(io.BytesIO(spoil(packed(archive, files))), target)
    assert not (tmp_path / "etc").exists()


def test_a_disk_without_room_is_said_before_it_is_full(
    archive: ModuleType, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"total": 10**9, "free": 5 * 10**7})
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="50 MB are free on this disk"):
        archive.read(io.BytesIO(packed(archive, files)), str(tmp_path / "target"))


def database(path: Path) -> sqlite3.Connection:
    """K3s' database, in use."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(KINE)
    connection.execute("INSERT INTO kine (name, value) VALUES ('/registry/a', x'00ff')")
    return connection


def test_sqlite_is_copied_as_it_is_at_one_moment(made: ModuleType, tmp_path: Path) -> None:
    with contextlib.closing(database(tmp_path / "state.db")) as k3s:
        k3s.execute("BEGIN IMMEDIATE")  # K3s is about to write
        k3s.execute("INSERT INTO kine (name, value) VALUES ('/registry/b', x'01')")
        made.copy_sqlite(str(tmp_path / "state.db"), str(tmp_path / "copy.db"))
        k3s.execute("COMMIT")
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT name, value FROM kine").fetchall() == [("/registry/a", b"\0\xff")]
        assert copy.execute("SELECT seq FROM sqlite_sequence").fetchall() == [(1,)]


def test_a_database_without_objects_is_no_backup(made: ModuleType, tmp_path: Path) -> None:
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
    made: ModuleType, tmp_path: Path, spoil: Callable[[bytes], bytes], message: str | None
) -> None:
    content = bytes(4096)
    path = tmp_path / "snapshot"
    path.write_bytes(spoil(content + hashlib.sha256(content).digest()))
    with pytest.raises(made.BackupError, match=message) if message else contextlib.nullcontext():
        made.check_etcd(str(path))


def test_data_elsewhere_are_not_backed_up(made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(made.BackupError, match="in a database elsewhere"):
        made.datastore(str(tmp_path))
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "state.db").touch()
    assert made.datastore(str(tmp_path)) == "sqlite"
    (tmp_path / "db" / "etcd").mkdir()  # K3s has moved the data over from SQLite
    assert made.datastore(str(tmp_path)) == "etcd"


def test_what_a_killed_backup_left_goes(
    made: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def unpacked(archive: ModuleType, restored: ModuleType, files: Path, tmp_path: Path) -> Callable[..., Path]:
    """Unpacks a backup beside a server's data, and gives the data's path."""

    def unpack(**facts: Any) -> Path:
        backup = tmp_path / "backup"
        backup.write_bytes(packed(archive, files, **facts))
        data = tmp_path / "k3s" / "server"
        restored.unpack(str(backup), str(data), None)
        return data

    return unpack


def test_new_hardware_gets_all_that_the_server_was(
    restored: ModuleType, unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    data = unpacked(server=os.uname().nodename.lower())
    assert restored.place(str(data)) == (None, None)
    assert (data / "token").read_text() == "K10"
    assert (tmp_path / "etc" / "config.yaml").read_text() == "theirs"
    assert (tmp_path / "node" / "password").read_text() == "p"


def test_a_server_that_goes_back_keeps_its_data_and_its_owners_files(
    restored: ModuleType, unpacked: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "config.yaml").write_text("newer")
    data = tmp_path / "k3s" / "server"
    data.mkdir(parents=True)
    (data / "token").write_text("of today")
    unpacked(server="another-name")
    _, old = restored.place(str(data))
    assert (Path(old) / "token").read_text() == "of today"
    assert (data / "token").read_text() == "K10"
    assert (tmp_path / "etc" / "config.yaml").read_text() == "newer"

    restored.take_back(str(data), old)
    assert (data / "token").read_text() == "of today"
    assert [path.name for path in data.parent.iterdir()] == ["server"]


def test_etcds_snapshot_is_named(restored: ModuleType, unpacked: Callable[..., Path], files: Path) -> None:
    (files / "server" / "db" / "snapshot").write_text("s")
    data = unpacked()
    assert restored.place(str(data)) == (str(data / "db" / "snapshot"), None)


def test_the_manifest_names_no_secret(archive: ModuleType, files: Path) -> None:
    manifest = archive.read(io.BytesIO(packed(archive, files)))
    assert "K10" not in json.dumps(manifest)


def test_a_token_that_was_changed_since_is_found_before_anything_stops(
    archive: ModuleType, restored: ModuleType, files: Path, tmp_path: Path
) -> None:
    full = f"K10{'0' * 64}::server:secret\n"
    (files / "server" / "token").write_text(full)
    backup = tmp_path / "backup"
    backup.write_bytes(packed(archive, files))
    data = str(tmp_path / "k3s" / "server")
    for token in (None, full, "secret"):
        restored.unpack(str(backup), data, token)
    with pytest.raises(restored.ArchiveError, match="k3s_token is not the token that this cluster had"):
        restored.unpack(str(backup), data, "newer")
