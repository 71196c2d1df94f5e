# SPDX-License-Identifier: Apache-2.0
"""Events from directories, and life without them."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
from pathlib import Path

import pytest
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch, Identity


async def test_changes_of_entries_are_heard(tmp_path: Path) -> None:
    changed = asyncio.Event()
    with DirectoryWatch(tmp_path, changed.set) as watch:
        assert watch.rearm()
        for change in (
            (tmp_path / "a").touch,
            lambda: (tmp_path / "a").rename(tmp_path / "b"),
            (tmp_path / "b").unlink,
        ):
            changed.clear()
            change()
            assert await waiting.happens(changed, 5)


async def test_a_directory_made_anew_is_followed(tmp_path: Path) -> None:
    directory = tmp_path / "sockets"
    changed = asyncio.Event()
    with DirectoryWatch(directory, changed.set) as watch:
        assert not watch.rearm()
        for _ in range(2):
            directory.mkdir()
            assert watch.rearm()
            changed.clear()
            (directory / "a").touch()
            assert await waiting.happens(changed, 5)
            shutil.rmtree(directory)
            assert not watch.rearm()


async def test_without_inotify_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted:
        def inotify_init1(self, _flags: int) -> int:
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: Exhausted())
    with DirectoryWatch(tmp_path, lambda: None) as watch:
        assert not watch.rearm()


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EIO])
async def test_a_read_that_fails_does_not_make_it_deaf(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, changed = asyncio.Event(), asyncio.Event()

    def fail(fd: int, size: int) -> bytes:
        monkeypatch.undo()
        os.read(fd, size)
        failed.set()
        raise OSError(error, os.strerror(error))

    with DirectoryWatch(tmp_path, changed.set) as watch:
        monkeypatch.setattr(os, "read", fail)
        (tmp_path / "a").touch()
        assert await waiting.happens(failed, 5)
        assert watch.rearm()
        (tmp_path / "b").touch()
        assert await waiting.happens(changed, 5)


async def test_nothing_stays_open(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(3):
        with DirectoryWatch(tmp_path, lambda: None):
            pass
    assert descriptors() == before


def test_an_identity_tells_a_file_from_its_successor(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert Identity.of(file) is None
    file.touch()
    first = Identity.of(file)
    assert first == Identity.of(file)
    file.unlink()
    file.touch()
    assert first != Identity.of(file)
