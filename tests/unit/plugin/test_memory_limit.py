# SPDX-License-Identifier: Apache-2.0
"""The files that a container with limited memory mounts: library, preload list and ledger."""

import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tegra_device_plugin.sharing import memory_limit
from tegra_device_plugin.sharing.ledger import Ledger, header, mounted, provide, read, remove

from tests import ledgers


def key() -> bytes:
    return b"k" * 32


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(b"old")
    return path


def test_existing_files_are_not_written(tmp_path: Path, library: Path) -> None:
    memory_limit.provide_files(tmp_path, library)
    before = {path: path.stat() for path in tmp_path.iterdir()}
    memory_limit.provide_files(tmp_path, library)
    assert {path: path.stat() for path in tmp_path.iterdir()} == before


def test_ledgers_that_others_can_enter_become_roots_alone(tmp_path: Path, library: Path) -> None:
    (tmp_path / memory_limit.LEDGERS).mkdir()
    (tmp_path / memory_limit.LEDGERS).chmod(0o711)
    memory_limit.provide_files(tmp_path, library)
    assert (tmp_path / memory_limit.LEDGERS).stat().st_mode & 0o777 == 0o700


def test_a_running_container_keeps_the_library_that_it_has_mounted(tmp_path: Path, library: Path) -> None:
    memory_limit.provide_files(tmp_path, library)
    with (tmp_path / memory_limit.LIBRARY).open("rb") as mounted:
        library.write_bytes(b"new")
        memory_limit.provide_files(tmp_path, library)
        assert mounted.read() == b"old"
    assert (tmp_path / memory_limit.LIBRARY).read_bytes() == b"new"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [(Path.unlink, r"library\.so"), (lambda path: path.write_bytes(b""), "is empty")],
    ids=["gone", "empty"],
)
def test_a_missing_or_empty_library_is_not_put_there(
    damage: Callable[[Path], object], problem: str, tmp_path: Path, library: Path
) -> None:
    damage(library)
    directory = tmp_path / "limit"
    with pytest.raises(OSError, match=problem):
        memory_limit.provide_files(directory, library)
    assert not directory.exists()


@pytest.mark.parametrize("name", [memory_limit.LIBRARY, memory_limit.PRELOAD])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "empty"])
def test_damaged_files_are_noticed_and_repaired(
    name: str, damage: object, tmp_path: Path, library: Path
) -> None:
    memory_limit.provide_files(tmp_path, library)
    assert callable(damage)
    damage(tmp_path / name)
    with pytest.raises(OSError, match=name):
        memory_limit.check_files(tmp_path)
    memory_limit.provide_files(tmp_path, library)
    memory_limit.check_files(tmp_path)


# Written by hand: magic, 1 GiB, 2 MiB, zeros.
HEADER = b"TGLEDGR2" + b"\0\0\0\x40\0\0\0\0" + b"\0\0\x20\0\0\0\0\0" + bytes(40)


def test_the_bytes_are_those_of_the_library() -> None:
    assert header(1 << 30, 2 << 20) == HEADER


@pytest.mark.parametrize("sizes", [(), (5,), (0, 1 << 40, 7), (3,) * 64])
def test_each_processs_lock_is_its_bytes(sizes: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "m0"
    path.write_bytes(HEADER)
    with ledgers.used_by(path, *sizes):
        found = read(path)
    assert (found.limit, found.overhead, sorted(found.processes)) == (1 << 30, 2 << 20, sorted(sizes))
    assert found.used == sum(sizes) + len(sizes) * (2 << 20)
    assert read(path).used == 0


@pytest.mark.parametrize("content", [b"", b"X" + HEADER[1:], HEADER + b"\0"])
def test_another_file_is_not_read_as_a_ledger(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m0").write_bytes(content)
    with pytest.raises(ValueError, match="no ledger"):
        read(tmp_path / "m0")


def test_a_lock_of_everything_is_more_than_any_limit(tmp_path: Path) -> None:
    (tmp_path / "m0").write_bytes(HEADER)
    with (tmp_path / "m0").open("rb") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
        assert read(tmp_path / "m0").used > 1 << 55


def test_a_container_with_many_locks_delays_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tegra_device_plugin.sharing.ledger._SECONDS", -1)
    (tmp_path / "m0").write_bytes(HEADER)
    with pytest.raises(ValueError, match="too many locks"):
        read(tmp_path / "m0")


def test_a_lease_of_the_file_delays_no_reader(tmp_path: Path) -> None:
    provide(tmp_path / "m0", 1, 0, key)
    with (tmp_path / "m0").open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETSIG, 23)  # SIGURG, which is ignored, in place of SIGIO
        with pytest.raises(BlockingIOError):
            read(tmp_path / "m0")
        with pytest.raises(BlockingIOError):
            provide(tmp_path / "m0", 1, 0, key)


def test_every_user_of_a_container_may_read_it_and_its_name_cannot_be_guessed(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        provide(tmp_path / "m0", 1, 2, key)
        provide(tmp_path / "m1", 1, 2, key)
    finally:
        os.umask(before)
    files = [mounted(tmp_path / name) for name in ("m0", "m1")]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "m0", tmp_path / "m1", *files])
    secrets = {path.name.partition(".")[2] for path in files}
    assert {len(secret) for secret in secrets} == {32} and len(secrets) == 2
    assert read(tmp_path / "m0") == Ledger(1, 2)


@pytest.mark.parametrize("left", [b"", b"x" * 5000], ids=["empty", "too long"])
def test_a_ledger_is_rewritten_in_the_mounted_file(left: bytes, tmp_path: Path) -> None:
    provide(tmp_path / "m0", 1, 2, key)
    file = mounted(tmp_path / "m0")
    file.write_bytes(left)
    with file.open("rb") as opened:
        provide(tmp_path / "m0", 3, 4, key)
        assert opened.read() == header(3, 4)
    assert mounted(tmp_path / "m0") == file


def test_a_link_in_the_files_place_is_not_followed(tmp_path: Path) -> None:
    provide(tmp_path / "m0", 1, 2, key)
    file = mounted(tmp_path / "m0")
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        provide(tmp_path / "m0", 1, 0, key)
    assert not (tmp_path / "elsewhere").exists()


def test_a_removed_ledger_leaves_nothing_and_takes_no_other(tmp_path: Path) -> None:
    provide(tmp_path / "m1", 1, 2, key)
    provide(tmp_path / "m10", 1, 2, key)
    (tmp_path / "m1.left").write_bytes(b"")  # by a process that was killed before it made the link
    remove(tmp_path / "m1")
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"m10"}
    remove(tmp_path / "m1")
    remove(tmp_path / "none" / "m1")


def limit(directory: Path) -> memory_limit.Limit:
    return memory_limit.Limit(directory, "m0", 1 << 30)


@pytest.mark.parametrize("lost", ["files", "directory"])
def test_a_removed_ledger_is_made_again_in_the_file_that_the_kubelet_mounts(
    lost: str, tmp_path: Path, library: Path
) -> None:
    """The kubelet keeps the path from the first Allocate, over restarts of containers and of itself."""
    directory = tmp_path / "limit"
    memory_limit.provide_files(directory, library)
    limit(directory).prepare()
    before = limit(directory).mounts
    if lost == "files":
        for path in (directory / "ledgers").iterdir():
            path.unlink()
    else:
        shutil.rmtree(directory / "ledgers")
        memory_limit.provide_files(directory, library)
    limit(directory).prepare()
    assert limit(directory).mounts == before
    assert read(Path(before[2].host)) == Ledger(1 << 30, 0)


def test_the_key_of_the_names_is_roots_alone_and_differs_between_boards(
    tmp_path: Path, library: Path
) -> None:
    names = set()
    for board in (tmp_path / "a", tmp_path / "b"):
        memory_limit.provide_files(board, library)
        (secret,) = (path for path in board.iterdir() if path.name == "ledger-key")
        assert (secret.stat().st_mode & 0o777, secret.stat().st_size) == (0o600, 32)
        limit(board).prepare()
        names.add(Path(limit(board).mounts[2].host).name)
    assert len(names) == 2


def test_a_damaged_key_is_replaced(tmp_path: Path, library: Path) -> None:
    memory_limit.provide_files(tmp_path, library)
    (tmp_path / "ledger-key").write_bytes(b"")
    memory_limit.provide_files(tmp_path, library)
    assert len((tmp_path / "ledger-key").read_bytes()) == 32


def test_a_ledger_with_a_name_of_0_1_0_stays_where_it_is(tmp_path: Path, library: Path) -> None:
    """By chance, not by a key; its container runs on over an update."""
    memory_limit.provide_files(tmp_path, library)
    (tmp_path / "ledgers/m0").symlink_to("m0.0123456789abcdef0123456789abcdef")
    limit(tmp_path).prepare()
    (mounted,) = (
        one.host for one in limit(tmp_path).mounts if one.container == memory_limit.CONTAINER_LEDGER
    )
    assert mounted == f"{tmp_path}/ledgers/m0.0123456789abcdef0123456789abcdef"
    assert read(Path(mounted)) == Ledger(1 << 30, 0)


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "symlink", "fchmod"])
def test_a_full_disk_leaves_no_file(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    provide(tmp_path / "m1", 1, 2, key)
    before = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                provide(tmp_path / "m0", 1, 2, key)
        if call != "symlink":
            with pytest.raises(OSError, match="No space left"):
                provide(tmp_path / "m1", 1, 2, key)
    assert sorted(tmp_path.iterdir()) == before
