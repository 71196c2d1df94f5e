# SPDX-License-Identifier: Apache-2.0
"""The ledger's bytes, and how it is begun anew under a container that has it mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tegra_device_plugin.sharing.ledger import Ledger, Slot, fresh, parse, read, reset

# Written by hand: magic, 1 GiB, 2 MiB, zeros; the second of 64 slots has pid 7, start time 258, 3 bytes.
HEADER = b"TGLEDGR1" + b"\0\0\0\x40\0\0\0\0" + b"\0\0\x20\0\0\0\0\0" + bytes(40)
USED = b"\x07" + bytes(7) + b"\x02\x01" + bytes(6) + b"\x03" + bytes(15)


def test_the_bytes_are_those_of_the_library() -> None:
    assert fresh(1 << 30, 2 << 20) == HEADER + bytes(64 * 32)
    written = HEADER + bytes(32) + USED + bytes(62 * 32)
    assert parse(written) == Ledger(1 << 30, 2 << 20, (Slot(7, 258, 3),))


@pytest.mark.parametrize("pid", [1 << 22, (1 << 64) - 1])
def test_a_slot_that_no_process_can_own_is_free(pid: int) -> None:
    slot = pid.to_bytes(8, "little") + USED[8:]
    assert parse(HEADER + slot + bytes(63 * 32)) == Ledger(1 << 30, 2 << 20)


@pytest.mark.parametrize("content", [b"", HEADER, b"X" + fresh(0, 0)[1:], fresh(0, 0) + b"\0"])
def test_what_is_no_ledger_is_not_read(content: bytes) -> None:
    with pytest.raises(ValueError, match="no ledger"):
        parse(content)


def test_every_user_of_a_container_may_write_a_new_ledger(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        reset(tmp_path / "m0", 1, 2)
    finally:
        os.umask(before)
    assert (tmp_path / "m0").stat().st_mode & 0o777 == 0o666
    assert read(tmp_path / "m0") == Ledger(1, 2)


@pytest.mark.parametrize("left", [b"", b"x" * 5000, HEADER + USED * 64], ids=["empty", "too long", "full"])
def test_a_ledger_is_begun_anew_in_the_file_that_is_mounted(left: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m0"
    path.write_bytes(left)
    with path.open("rb") as mounted:
        reset(path, 3, 4)
        assert parse(mounted.read()) == Ledger(3, 4)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "m0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        reset(tmp_path / "m0", 1, 0)
    assert not (tmp_path / "elsewhere").exists()
