# SPDX-License-Identifier: Apache-2.0
"""What a running plugin does when it is told to read its settings again, and what it says of it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from tegra_device_plugin.config import settings
from tegra_device_plugin.config.watch import ConfigWatch
from tegra_device_plugin.daemon import Daemon
from tegra_device_plugin.signals import Signals

CONFIG = "version: v1\nflags: {{plugin: {{logFormat: {log_format}}}}}\n"


class Asked:
    """Stands in for the process' signals."""

    def __init__(self) -> None:
        self.ended = self.reload = False
        self.heard: Callable[[], None] = lambda: None

    def listen(self, heard: Callable[[], None]) -> None:
        """Remember who is to be told."""
        self.heard = heard


class Running:
    """A plugin that runs beside the test on a machine without a GPU, its file and its log."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.asked = Asked()
        self.file = directory / "config.yaml"
        self.file.write_text(CONFIG.format(log_format="text"))
        places = {"HOST_ROOT": str(directory), "DEVICE_PLUGIN_DIR": str(directory)}
        watch = ConfigWatch(self.file, lambda: settings.load_plugin(self.file, places, {}))
        self.daemon = Daemon(watch, cast(Signals, self.asked))
        self._capsys = capsys
        self._unread: list[str] = []

    def reads(self, text: str | None = None) -> None:
        """Change the file, if wanted, and send what SIGHUP is."""
        if text:
            self.file.write_text(text)
        self.asked.reload = True
        self.asked.heard()

    async def says(self, text: str) -> str:
        """Wait for a line of the log that has a text, after those that were waited for; give it."""
        async with asyncio.timeout(10):
            while True:
                self._unread += self._capsys.readouterr().err.splitlines()
                while self._unread:
                    if text in (line := self._unread.pop(0)):
                        return line
                await asyncio.sleep(0.01)  # nobody tells of a line


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place with a short path."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as path:
        yield Path(path)


@asynccontextmanager
async def running(
    directory: Path, capsys: pytest.CaptureFixture[str], says: str = " WARNING no Tegra GPU here"
) -> AsyncIterator[Running]:
    """Run the plugin, after a line of its log: it has looked at the machine once."""
    plugin = Running(directory, capsys)
    task = asyncio.ensure_future(plugin.daemon.run())
    await plugin.says(says)
    yield plugin
    plugin.asked.ended = True
    plugin.asked.heard()
    async with asyncio.timeout(10):
        await task


async def test_the_log_looks_otherwise_after_other_settings(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(directory, capsys) as plugin:
        plugin.reads(CONFIG.format(log_format="json"))
        line = json.loads(await plugin.says("configuration read again"))
        assert (line["message"], line["level"]) == ("configuration read again", "info")


async def test_settings_that_are_the_same_are_told_as_such(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(directory, capsys) as plugin:
        plugin.reads()
        assert (await plugin.says("configuration read again")).endswith("again: nothing has changed")


async def test_settings_that_are_wrong_change_nothing(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(directory, capsys) as plugin:
        plugin.reads("version: v1\nfoo: 1\n")
        assert "config.yaml:2: foo is not known" in await plugin.says("the old one stays in force")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            plugin.reads(f"version: v1\nflags: {{plugin: {{metricsAddress: '{address}'}}}}\n")
            line = await plugin.says("the old one stays in force")
        assert f"metricsAddress {address}: Address already in use" in line
        plugin.reads(CONFIG.format(log_format="text"))
        assert (await plugin.says("configuration read again")).endswith("again: nothing has changed")


async def test_a_socket_of_jtop_that_cannot_be_seen_ends_nothing(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, socket_file = Path.stat, directory / "run/jtop.sock"

    def refuse(path: Path, **how: bool) -> os.stat_result:
        if path == socket_file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", refuse)
    async with running(directory, capsys, "no telemetry from jtop: cannot see the service: [Errno 13]"):
        pass


async def test_a_board_without_jtop_is_told(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(directory, capsys, "jtop.sock: the service does not run"):
        pass
