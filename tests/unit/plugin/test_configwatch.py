# SPDX-License-Identifier: Apache-2.0
"""When the configuration is read again."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.config.watch import ConfigWatch


class Reader:
    """A file, and how often it was read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_text("0")
        self.texts: list[str] = []
        self.watch = ConfigWatch(file, self._load)
        self.watch.read()

    def _load(self) -> PluginSettings:
        self.texts.append(self.file.read_text())
        return PluginSettings()


async def soon(waiting: Awaitable[None]) -> None:
    """Wait, but not for ever."""
    async with asyncio.timeout(5):
        await waiting


async def quiet(reader: Reader) -> bool:
    """Tell whether nothing is left to be read, without waiting."""
    changed = asyncio.ensure_future(reader.watch.changed())
    await asyncio.sleep(0)
    changed.cancel()
    await asyncio.wait((changed,))
    return changed.cancelled()


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A file that was read once."""
    return Reader(tmp_path / "config.yaml")


async def test_an_edit_between_reading_and_watching_is_not_lost(reader: Reader) -> None:
    reader.file.write_text("edited")
    await soon(reader.watch.changed())
    reader.watch.read()
    assert reader.texts[-1] == "edited"
    assert await quiet(reader)


async def test_an_edit_while_it_is_read_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("0")

    def load() -> PluginSettings:
        file.write_text("edited meanwhile")
        return PluginSettings()

    watch = ConfigWatch(file, load)
    watch.read()
    await soon(watch.changed())
