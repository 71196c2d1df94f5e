# SPDX-License-Identifier: Apache-2.0
"""Backups of a K3s server: consistent data, refused damage, the record on the controller, and killed runs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.planted import JOURNAL, leaked
from tests.unit.roles.loading import Data, load

archive = load("k3s_backup/module_utils/k3s_archive.py")
made = load("k3s_backup/library/k3s_backup.py")
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
    "other content": (without("server/token", SECRET[::-1].encode()), "not what was written"),
    "other size": (without("server/token", b"K11"), "has another size"),
    "twice": (without("server/token", SECRET.encode(), SECRET.encode()), "is there twice"),
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


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content, None),
        (lambda content: content[:-1], "cut off"),
        (lambda content: b"x" + content[1:], "does not have the hash"),
    ],
)
def test_etcd_snapshot_has_its_hash(
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
def unpack(files: Path, tmp_path: Path, key: Path) -> Callable[[Data], None]:
    """Unpacks an encrypted backup as the module does that restores it, with other parameters."""
    seal = load("k3s_backup/library/k3s_backup_seal.py")
    restored = load("k3s_backup/library/k3s_restore.py")
    path = tmp_path / "backup.tar.gz.gpg"
    (files / "server" / "token").write_text(FULL_TOKEN)
    path.write_bytes(encrypted(packed(files), key))
    params = {"archive": str(path), "sha256": hash_of(path), "token": None}
    params["session_key"] = seal.session_key(gpg, str(path))

    def run(changes: Data) -> None:
        with restored.unpacking(str(tmp_path / "k3s" / "server")) as new:
            restored.unpack(params | changes, new, gpg)

    return run


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


record_module = load("k3s_backup/module_utils/k3s_backup_record.py")

NAME, OTHER_NAME = "k3s-jetson-1-20260102T030405Z.tar.gz.gpg", "k3s-jetson-1-20260103T030405Z.tar.gz.gpg"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    path = str(tmp_path / "state" / "jetson-k3s" / "backups.sha256")
    for name in (NAME, OTHER_NAME):
        record_module.add(path, sha256(name), name)
    return path


def test_record_is_one_that_sha256sum_reads_and_of_this_user_alone(recorded: str) -> None:
    assert Path(recorded).read_text() == f"{sha256(NAME)}  {NAME}\n{sha256(OTHER_NAME)}  {OTHER_NAME}\n"
    assert Path(recorded).stat().st_mode & 0o777 == 0o600
    assert Path(recorded).parent.stat().st_mode & 0o777 == 0o700
    record_module.check(recorded, f"/media/stick/{NAME}", sha256(NAME), None)


def test_changed_backup_is_refused_with_the_way_to_accept_it(recorded: str) -> None:
    forged = sha256("forged")
    words = f"did not make it, or it was changed since.* -e k3s_backup_accepted_sha256={forged}$"
    with pytest.raises(record_module.ArchiveError, match=words):
        record_module.check(recorded, f"backups/{NAME}", forged, None)
    record_module.check(recorded, f"backups/{NAME}", forged, forged)


def test_old_backup_under_the_name_of_a_newer_one_is_refused(recorded: str) -> None:
    with pytest.raises(record_module.ArchiveError, match=f"under another name, {NAME}"):
        record_module.check(recorded, f"backups/{OTHER_NAME}", sha256(NAME), None)


@pytest.mark.parametrize("accepted", [sha256("another"), "true", "yes"])
def test_acceptance_names_the_very_file(recorded: str, accepted: str) -> None:
    for found in (sha256(NAME), sha256("forged")):
        with pytest.raises(record_module.ArchiveError, match=f"its SHA-256 is {found}, not "):
            record_module.check(recorded, NAME, found, accepted)


def test_controller_without_a_record_refuses(tmp_path: Path) -> None:
    with pytest.raises(record_module.ArchiveError, match="is not recorded in"):
        record_module.check(str(tmp_path / "none"), NAME, sha256(NAME), None)


def test_record_that_others_can_write_proves_nothing(recorded: str) -> None:
    Path(recorded).chmod(0o620)
    with pytest.raises(record_module.ArchiveError, match="can be written by other users"):
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
    with pytest.raises(record_module.ArchiveError, match="cannot be recorded"):
        record_module.add(recorded, hashed, name)
    assert Path(recorded).read_text() == before


CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.chmod",
    "subprocess.Popen",
    "sqlite3.connect",
}


def is_change(event: str, arguments: tuple[Any, ...]) -> bool:
    """Is this a system call that changes files, or the start of a program that does?"""
    return event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & 3 != 0)


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run it in another process, killed before its change of this number; whether it got so far."""
    ended, alive = os.pipe()
    process = os.fork()
    if process == 0:
        count = 0

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if is_change(event, arguments):
                count += 1
                if count == number and os.getpid() == me:
                    os.kill(me, signal.SIGKILL)

        me = os.getpid()
        try:
            os.close(ended)
            sys.addaudithook(audit)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(alive)
    assert os.read(ended, 1) == b""  # all processes that it has forked have ended as well
    os.close(ended)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def in_clear(*directories: Path) -> list[Path]:
    paths = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    return [path for path in paths if SECRET.encode() in path.read_bytes()]


def at_every_change(directory: Path, work: Callable[[Path], object], check: Callable[[Path], object]) -> int:
    """Kill it at each of its changes, in a new directory each time; return their number."""
    number = 1
    while True:
        place = directory / str(number)
        place.mkdir()
        killed = killed_at(number, lambda place=place: work(place))  # type: ignore[misc]
        check(place)
        shutil.rmtree(place, ignore_errors=True)  # the gpg-agent of a killed run removes its sockets, too
        if not killed:
            return number - 1
        number += 1


@pytest.fixture
def server(tmp_path: Path) -> Path:
    data = tmp_path / "server"
    for name in ("token", "tls/server-ca.crt", "tls/server-ca.key", "cred/passwd", "manifests/a.yaml"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(SECRET)
    (data / "db").mkdir()
    with contextlib.closing(database(data / "db" / "state.db")) as k3s:
        k3s.execute("INSERT INTO kine (name, value) VALUES ('/registry/secrets', ?)", (SECRET.encode(),))
    return data


@pytest.fixture
def places() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="killed-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
def backup(tmp_path: Path, key: Path) -> Data:
    """A backup of files that all have the secret, in clear and encrypted."""
    files = write_files(tmp_path / "files")
    (files / "etc" / "config.yaml").write_text(SECRET)
    clear, sealed = tmp_path / "backup", tmp_path / "backup.gpg"
    clear.write_bytes(packed(files))
    sealed.write_bytes(encrypted(clear.read_bytes(), key))
    return {"clear": clear, "archive": str(sealed), "sha256": hash_of(sealed), "token": None}


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("encrypts", [True, False])
def test_killed_backup(server: Path, places: Path, key: Path, encrypts: bool) -> None:
    made = load("k3s_backup/library/k3s_backup.py")
    name = "backup.gpg" if encrypts else "backup"
    params = {"recipient": key.read_text() if encrypts else None}
    board = {
        "get_bin_path": shutil.which,
        "run_command": lambda argv: (0, "k3s version v1.33.5+k3s1 (x)", ""),
    }

    def work(place: Path) -> None:
        here = {"DATA": server, "CONFIG": place / "etc", "NODE_PASSWORD": place / "password"}
        here["FETCHED_FROM"] = place
        vars(made).update({constant: str(path) for constant, path in here.items()})
        os.umask(0o077)
        module = SimpleNamespace(params={**params, "directory": str(place / "backups")}, **board)
        made.backup(module, "sqlite", name)

    def check(place: Path) -> None:
        # One that is not encrypted is complete and root's alone, or not there.
        left = [path for path in place.rglob("*") if path.is_file()]
        assert {path.name for path in left} <= {name}
        assert in_clear(place) == []

    assert at_every_change(places, work, check) > 20


@pytest.mark.parametrize("state", ["checked", "placed"])
def test_killed_restore(backup: Data, places: Path, state: str) -> None:
    restored = load("k3s_backup/library/k3s_restore.py")
    gpg = shutil.which("gpg")
    backup["session_key"] = load("k3s_backup/library/k3s_backup_seal.py").session_key(gpg, backup["archive"])

    def work(place: Path) -> None:
        vars(restored).update(CONFIG=str(place / "etc"), NODE_PASSWORD=str(place / "node" / "password"))
        data = str(place / "k3s" / "server")
        with restored.unpacking(data) as new:
            manifest = restored.unpack(backup, new, gpg)
            if state == "placed":
                restored.place(data, new, manifest)

    def check(place: Path) -> None:
        beside = {path.name for path in (*(place / "k3s").glob("*"), *(place / "etc").glob("*"))}
        assert beside <= ({"server", "config.yaml"} if state == "placed" else set())

    assert at_every_change(places, work, check) > 10


def test_killed_on_the_controller(backup: Data, places: Path) -> None:
    seal = load("k3s_backup/library/k3s_backup_seal.py")
    read = load("k3s_backup/library/k3s_backup_read.py")
    gpg = shutil.which("gpg")

    def work(place: Path) -> None:
        seal.tempfile.tempdir = str(place)
        read.manifest_of(backup["archive"], gpg)
        seal.session_key(gpg, backup["archive"])
        seal.seal(gpg, str(backup["clear"]), hash_of(backup["clear"]), str(place))

    def check(place: Path) -> None:
        # Neither the files nor the archive that they are in.
        assert in_clear(place) == []
        archives = [
            path for path in place.rglob("*") if path.is_file() and path.read_bytes()[:2] == b"\x1f\x8b"
        ]
        assert archives == []

    assert at_every_change(places, work, check) > 3
