# SPDX-License-Identifier: Apache-2.0
"""Watches of the configuration and of directories."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.service import ConfigWatch
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import DirectoryWatch


@pytest.mark.parametrize("meanwhile", [True, False], ids=["while it is read", "before it is watched"])
async def test_an_edit_is_not_lost(meanwhile: bool, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("0")
    texts: list[str] = []

    def load() -> PluginSettings:
        texts.append(file.read_text())
        if meanwhile:
            file.write_text("edited")
        return PluginSettings()

    watch = ConfigWatch(file, load)
    watch.read()
    if not meanwhile:
        file.write_text("edited")
    async with asyncio.timeout(5):
        await watch.changed()
    meanwhile = False
    watch.read()
    assert texts == ["0", "edited"]
    nothing = asyncio.ensure_future(watch.changed())
    await asyncio.sleep(0)
    assert not nothing.done()
    nothing.cancel()


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

    with DirectoryWatch(tmp_path, on_change=changed.set) as watch:
        monkeypatch.setattr(os, "read", fail)
        (tmp_path / "a").touch()
        assert await waiting.happens(failed, 5)
        assert watch.rearm()
        (tmp_path / "b").touch()
        assert await waiting.happens(changed, 5)
