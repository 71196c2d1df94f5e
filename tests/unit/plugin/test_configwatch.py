# SPDX-License-Identifier: Apache-2.0
"""When the configuration is read again."""

import asyncio
from pathlib import Path

import pytest
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.service import ConfigWatch


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
