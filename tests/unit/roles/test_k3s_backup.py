# SPDX-License-Identifier: Apache-2.0
"""Backups of a K3s server: data that are written meanwhile, damage of every kind, and the way back."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.acceptance.openpgp import keyring
from tests.planted import JOURNAL, leaked
from tests.unit.roles.backups import FACTS, SECRET, database, encrypted, packed, write_files
from tests.unit.roles.conftest import Load


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
    return write_files(tmp_path / "files")


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


def fact(content: bytes, old: str, new: str) -> bytes:
    """The manifest says something else."""
    return changed(content, lambda _, text: text.replace(old.encode(), new.encode()))


def twice(content: bytes) -> bytes:
    """The token is there twice."""
    target = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=target, mode="w:gz") as new:
        for member in old:
            for _ in range(1 + (member.name == "server/token")):
                new.addfile(member, old.extractfile(member))
    return target.getvalue()


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "damaged or cut off"),
    "cut off": (lambda content: content[: len(content) // 2], "damaged or cut off"),
    "text": (lambda content: b"no tar", "damaged or cut off"),
    "no manifest": (lambda content: changed(content, of("manifest.json", None)), "does not begin with"),
    "broken manifest": (lambda content: changed(content, of("manifest.json", b"{}")), "cannot be read"),
    "missing file": (lambda content: changed(content, of("server/token", None)), "server/token is missing"),
    "other content": (
        lambda content: changed(content, of("server/token", SECRET[::-1].encode())),
        "not what was written",
    ),
    "other size": (lambda content: changed(content, of("server/token", b"K11")), "has another size"),
    "twice": (twice, "is there twice"),
    "other format": (
        lambda content: changed(content, lambda _, text: text.replace(b"backup/1", b"backup/9")),
        "it has the format jetson-k3s-backup/9",
    ),
    "way out": (lambda content: changed(content, elsewhere("server/../../x")), "names the file"),
    "absolute": (lambda content: changed(content, elsewhere("/etc/x")), "names the file"),
    "no token": (
        lambda content: changed(content, elsewhere("server/agent-token")),
        "does not have the token",
    ),
    "another version": (lambda content: fact(content, "v1.33.5+k3s1", "v1; x"), "no valid k3s_version"),
    "another time": (lambda content: fact(content, "2026-01-02T", "{{ x }}T"), "no valid created"),
    "other data": (lambda content: fact(content, "sqlite", "etcd"), "the data of one data store"),
} | {
    name: (lambda content, name=name: changed(content, elsewhere(name)), "which no backup has")
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


def test_a_snapshot_that_k3s_does_not_make_is_told_without_secrets(made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(made.BackupError, match="has failed: no disk") as error:
        made.copy_etcd(lambda _: (1, "", f"no disk\n{JOURNAL}"), str(tmp_path))
    assert leaked(str(error.value)) == []


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
def gpg(keys: Path) -> str:
    """The program gpg, with the owner's key."""
    found = shutil.which("gpg")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def keys() -> Iterator[Path]:
    """The owner's public key."""
    with keyring() as public:
        yield public


@pytest.fixture
def arrived(load: Load, files: Path, tmp_path: Path, keys: Path, gpg: str) -> Callable[..., dict[str, Any]]:
    """Encrypts a backup and gives the parameters of the module that restores it."""
    archive = load("k3s_backup/module_utils/k3s_archive.py")
    seal = load("k3s_backup/library/k3s_backup_seal.py")

    def encrypt(**changes: str) -> dict[str, Any]:
        facts = {name: text for name, text in changes.items() if name in FACTS}
        path = tmp_path / "backup.tar.gz.gpg"
        path.write_bytes(encrypted(packed(archive, files, **facts), keys))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        key = seal.session_key(gpg, str(path))
        params = {"archive": str(path), "sha256": sha256, "session_key": key, "token": None}
        return params | {name: text for name, text in changes.items() if name not in FACTS}

    return encrypt


@pytest.fixture
def restore(
    restored: ModuleType, arrived: Callable[..., dict[str, Any]], tmp_path: Path, gpg: str
) -> Callable[..., tuple[Path, str | None, str | None]]:
    """Restores a backup; gives the data's path, the snapshot's, and that of the old data."""

    def run(**facts: Any) -> tuple[Path, str | None, str | None]:
        data = tmp_path / "k3s" / "server"
        with restored.unpacking(str(data)) as new:
            snapshot, old = restored.place(str(data), new, restored.unpack(arrived(**facts), new, gpg))
        return data, snapshot, old

    return run


def test_new_hardware_gets_all_that_the_server_was(restore: Callable[..., Any], tmp_path: Path) -> None:
    data, *rest = restore(server=os.uname().nodename.lower())
    assert rest == [None, None]
    assert (data / "token").read_text() == SECRET
    assert (tmp_path / "etc" / "config.yaml").read_text() == "theirs"
    assert (tmp_path / "node" / "password").read_text() == "p"
    assert [path.name for path in data.parent.iterdir()] == ["server"]
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["config.yaml"]


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


def test_etcds_snapshot_is_named(restore: Callable[..., Any], files: Path) -> None:
    (files / "server" / "db" / "state.db").rename(files / "server" / "db" / "snapshot")
    data, snapshot, old = restore(datastore="etcd")
    assert (snapshot, old) == (str(data / "db" / "snapshot"), None)


def test_the_manifest_names_no_secret(archive: ModuleType, files: Path) -> None:
    manifest = archive.read(io.BytesIO(packed(archive, files)))
    assert SECRET not in json.dumps(manifest)


def test_a_token_that_was_changed_since_is_found_before_anything_stops(
    restored: ModuleType, arrived: Callable[..., dict[str, Any]], files: Path, tmp_path: Path, gpg: str
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
