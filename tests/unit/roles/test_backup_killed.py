# SPDX-License-Identifier: Apache-2.0
"""What a killed backup or restore leaves in clear is root's alone, and nothing on the controller.

Each is run in a process of its own, which is killed before its first change of a file, before its second, and
so on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_archive as archive
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_backup, k3s_backup_record, k3s_restore

from tests.unit.roles.test_k3s_backup import SECRET, database, encrypted, packed, write_files

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


def assert_of_root_alone(place: Path) -> None:
    """The next run removes such files (module_utils/private_directory.py)."""
    others = [path for path in in_clear(place) if path.stat().st_mode & 0o077]
    assert others == []


def at_every_change(directory: Path, work: Callable[[Path], object], check: Callable[[Path], object]) -> int:
    """Kill it at each of its changes, in a new directory each time; return their number."""
    number = 1
    while True:
        place = directory / str(number)
        place.mkdir()
        killed = killed_at(number, partial(work, place))
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
def backup(tmp_path: Path, key: Path) -> dict[str, Any]:
    """A backup of files that all have the secret, in clear and encrypted."""
    files = write_files(tmp_path / "files")
    (files / "etc" / "config.yaml").write_text(SECRET)
    clear, sealed = tmp_path / "backup", tmp_path / "backup.gpg"
    clear.write_bytes(packed(files))
    sealed.write_bytes(encrypted(clear.read_bytes(), key))
    return {"clear": clear, "archive": str(sealed), "sha256": hash_of(sealed), "token": None}


def opened(backup: dict[str, Any], gpg: str | None) -> str:
    """The session key, as the controller reads it."""
    key: str = k3s_backup_record.opened(backup["archive"], gpg)[1]
    return key


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("encrypts", [True, False])
def test_killed_backup(server: Path, places: Path, key: Path, encrypts: bool) -> None:
    name = "backup.gpg" if encrypts else "backup"
    params = {"recipient": key.read_text() if encrypts else None}
    board = {
        "get_bin_path": shutil.which,
        "run_command": lambda argv: (0, "k3s version v1.33.5+k3s1 (x)", ""),
    }

    def work(place: Path) -> None:
        here = {"DATA": server, "CONFIG": place / "etc", "NODE_PASSWORD": place / "password"}
        here["FETCHED_FROM"] = place
        vars(k3s_backup).update({constant: str(path) for constant, path in here.items()})
        os.umask(0o077)
        module = SimpleNamespace(params={**params, "directory": str(place / "backups")}, **board)
        k3s_backup.backup(module, "sqlite", name)

    def check(place: Path) -> None:
        # One with the name of a backup is complete.
        assert_of_root_alone(place)
        for path in place.rglob(name):
            assert encrypts or archive.read(path.open("rb"))["files"]

    assert at_every_change(places, work, check) > 20


@pytest.mark.parametrize("state", ["checked", "placed"])
def test_killed_restore(backup: dict[str, Any], places: Path, state: str) -> None:
    gpg = shutil.which("gpg")
    backup["session_key"] = opened(backup, gpg)

    def work(place: Path) -> None:
        os.umask(0o077)
        vars(k3s_restore).update(CONFIG=str(place / "etc"), NODE_PASSWORD=str(place / "node" / "password"))
        params = backup | {"data": str(place / "k3s/server"), "stamp": "20260102T030405Z", "running": False}
        with k3s_restore.unpacking(params["data"]) as new:
            manifest = k3s_restore.unpack(params, new, gpg)
            if state == "placed":
                k3s_restore.place_backup(params, new, manifest)

    assert at_every_change(places, work, assert_of_root_alone) > 10


def test_killed_on_the_controller(backup: dict[str, Any], places: Path) -> None:
    def work(place: Path) -> None:
        tempfile.tempdir = str(place)
        opened(backup, shutil.which("gpg"))

    def check(place: Path) -> None:
        # Neither the files nor the archive that they are in.
        assert in_clear(place) == []
        files = [path for path in place.rglob("*") if path.is_file()]
        assert [path for path in files if path.read_bytes()[:2] == b"\x1f\x8b"] == []

    at_every_change(places, work, check)
