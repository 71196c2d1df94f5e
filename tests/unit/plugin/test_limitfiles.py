# SPDX-License-Identifier: Apache-2.0
"""The files that a container with limited memory mounts: put there whole, and only what can be loaded."""

import struct
import sys
from pathlib import Path

import pytest
from tegra_device_plugin.sharing import ledger, memory_limit

OWN = Path(sys.executable).read_bytes()[:20]


def elf(ident: bytes = OWN[:16], kind: int = 3, machine: bytes = OWN[18:20]) -> bytes:
    """A library of which only the header is true."""
    return ident + struct.pack("<H", kind) + machine + bytes(100)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(elf())
    return path


def test_what_is_there_already_is_left_alone(tmp_path: Path, library: Path) -> None:
    memory_limit.provide_files(tmp_path, library)
    before = {path: path.stat() for path in tmp_path.iterdir()}
    memory_limit.provide_files(tmp_path, library)
    assert {path: path.stat() for path in tmp_path.iterdir()} == before


def test_a_running_container_keeps_the_library_that_it_has_mounted(tmp_path: Path, library: Path) -> None:
    memory_limit.provide_files(tmp_path, library)
    with (tmp_path / memory_limit.LIBRARY).open("rb") as mounted:
        library.write_bytes(elf() + b"new")
        memory_limit.provide_files(tmp_path, library)
        assert mounted.read() == elf()
    assert (tmp_path / memory_limit.LIBRARY).read_bytes() == elf() + b"new"


def test_ledgers_of_the_version_before_which_containers_could_write_are_gone(
    tmp_path: Path, library: Path
) -> None:
    ledgers = tmp_path / memory_limit.LEDGERS
    ledgers.mkdir(0o711)
    for name, mode in (("m9", 0o666), ("m3", 0o4755), ("claim-1-igpu-0-s1", 0o666)):
        (ledgers / name).write_bytes(b"#!/bin/sh")
        (ledgers / name).chmod(mode)
    ledger.provide(ledgers / "m4", 1, 2)
    memory_limit.provide_files(tmp_path, library)
    assert {path.name.partition(".")[0] for path in ledgers.iterdir()} == {"m4"}
    assert ledgers.stat().st_mode & 0o777 == 0o700


OTHER = bytes([OWN[18] ^ 0xFF, OWN[19]])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"#!/bin/sh\n" + bytes(100), "is no shared library"),
        (elf()[:19], "is no shared library"),
        (elf(kind=2), "is no shared library"),
        (elf(machine=OTHER), r"is for 64-bit machine \d+, this board is 64-bit \S+"),
        (elf(ident=OWN[:4] + b"\x01" + OWN[5:16]), "is for 32-bit .*, this board is 64-bit"),
    ],
    ids=["empty", "script", "cut off", "program", "another machine", "32-bit"],
)
def test_a_library_that_no_container_could_load_is_not_put_there(
    content: bytes, why: str, tmp_path: Path, library: Path
) -> None:
    library.write_bytes(content)
    directory = tmp_path / "limit"
    with pytest.raises(OSError, match=why):
        memory_limit.provide_files(directory, library)
    assert not directory.exists()


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none\.so"):
        memory_limit.provide_files(tmp_path, tmp_path / "none.so")


@pytest.mark.parametrize("name", [memory_limit.LIBRARY, memory_limit.PRELOAD])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "empty"])
def test_what_somebody_has_damaged_is_noticed_and_mended(
    name: str, damage: object, tmp_path: Path, library: Path
) -> None:
    memory_limit.provide_files(tmp_path, library)
    assert callable(damage)
    damage(tmp_path / name)
    with pytest.raises(OSError, match=name):
        memory_limit.check_files(tmp_path)
    memory_limit.provide_files(tmp_path, library)
    memory_limit.check_files(tmp_path)
