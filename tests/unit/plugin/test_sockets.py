# SPDX-License-Identifier: Apache-2.0
"""The socket directory: who serves, what is left over, what can never work."""

import socket
from pathlib import Path

import pytest
from tegra_device_plugin.kubelet.sockets import (
    accepts,
    check_mount,
    rivals,
    sweep,
)


def test_a_directory_that_goes_has_no_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It goes between any two calls, also after a check of its existence.
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert rivals(tmp_path / "gone") == frozenset()
    sweep(tmp_path / "gone")


def test_a_directory_that_is_just_being_deleted_is_no_stale_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_mount(tmp_path)
    check_mount(tmp_path / "absent")
    going = tmp_path / "going"
    going.mkdir()
    monkeypatch.chdir(going)  # a working directory outlives its name
    going.rmdir()
    assert Path().stat().st_nlink == 0
    check_mount(Path())


def test_a_full_queue_is_not_a_dead_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind("busy")
        busy.listen(0)
        first.connect("busy")
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            assert second.connect_ex("busy") != 0  # the queue is full indeed
        assert accepts(Path("busy"))
