# SPDX-License-Identifier: Apache-2.0
"""Events from directories, and life without them."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch


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
