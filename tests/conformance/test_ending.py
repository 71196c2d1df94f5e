# SPDX-License-Identifier: Apache-2.0
"""The plugin ends at SIGTERM, also during the events of a node's shutdown."""

import asyncio
import faulthandler
import itertools
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tegra_device_plugin.config import settings
from tegra_device_plugin.plugin import DevicePlugin
from tegra_device_plugin.service import ConfigWatch
from tegra_device_plugin.signals import Signals

from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import Plugin, running
from tests.conformance.test_registration import alive, plugin_sockets

pytestmark = pytest.mark.parametrize("generation", ["1.37"])

COINCIDENCES = 500
SEED = 13

CONFIG = (
    "version: v1\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}\n"
)
ELSEWHERE = CONFIG + "flags: {{plugin: {{metricsAddress: '127.0.0.1:0'}}}}\n"


@pytest.fixture
def signals() -> Iterator[Signals]:
    """The signals of this process, given back at the end."""
    signals = Signals()
    yield signals
    signals.ended = False
    signals.release()
    faulthandler.cancel_dump_traceback_later()


def serving(directory: Path) -> list[Path]:
    """Sockets on which a plugin serves."""
    return [path for path in plugin_sockets(directory) if alive(path)]


def delete_own_socket(kubelet: FakeKubelet) -> None:
    for path in plugin_sockets(kubelet.directory):
        path.unlink()


async def cut(kubelet: FakeKubelet) -> None:
    if kubelet.clients:
        await kubelet.cut()


class PluginTask:
    """A plugin in this process' own event loop, where a signal and an event can come in the same turn."""

    def __init__(self, kubelet: FakeKubelet, board: Path, file: Path, signals: Signals) -> None:
        self.kubelet = kubelet
        self.file = file
        self._places = {
            "HOST_ROOT": str(board),
            "DEVICE_PLUGIN_DIR": str(kubelet.directory),
            "LOG_LEVEL": "error",
        }
        self._signals = signals
        self._numbers = itertools.cycle(range(2, 8))
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self.file.write_text(CONFIG.format(replicas=2))
        self._signals.ended = False
        watch = ConfigWatch(self.file, lambda: settings.load_plugin(self.file, self._places, {}))
        self._task = asyncio.ensure_future(DevicePlugin(watch, self._signals).run())

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def ended(self) -> bool:
        """Return whether it ends in time, and leaves nothing behind."""
        assert self._task is not None
        done, _ = await asyncio.wait((self._task,), timeout=5)
        faulthandler.cancel_dump_traceback_later()
        if done:
            self._task.result()
        return bool(done) and not serving(self.kubelet.directory)

    def configure(self, text: str) -> None:
        self.file.write_text(text.format(replicas=next(self._numbers)))
        os.kill(os.getpid(), signal.SIGHUP)


EVENTS: dict[str, Callable[[PluginTask], object]] = {
    "nothing": lambda _: None,
    "unrelated file": lambda task: (task.kubelet.directory / "DEPRECATION").write_text("again"),
    "own socket goes": lambda task: delete_own_socket(task.kubelet),
    "stream ends": lambda task: cut(task.kubelet),
    "kubelet restarts": lambda task: task.kubelet.restart(),
    "settings change": lambda task: task.configure(CONFIG),
    "settings that need a new start": lambda task: task.configure(ELSEWHERE),
}


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_five_hundred_ends_that_coincide_with_an_event(
    kubelet: FakeKubelet, board: Path, tmp_path: Path, signals: Signals
) -> None:
    plugin_task = PluginTask(kubelet, board, tmp_path / "config.yaml", signals)
    chance = random.Random(SEED)  # noqa: S311 - the same coincidences in each run
    for number in range(COINCIDENCES):
        event = list(EVENTS)[number % len(EVENTS)]
        started, before, between = chance.random() < 0.8, chance.randrange(40), chance.randrange(6)
        plugin_task.begin()
        if started:
            await plugin_task.kubelet.until_allocatable(2, seconds=10)
        await turns(before)
        happening = EVENTS[event](plugin_task)
        if isinstance(happening, Awaitable):
            await happening
        await turns(between)
        plugin_task.end()
        where = f"{number}: {event}, started {started}, {before} turns before, {between} between"
        assert await plugin_task.ended(), where


def takes_sigterm(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


def child_of(plugin: Plugin) -> int | None:
    pid = plugin.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


async def until_it_takes_signals(plugin: Plugin) -> int:
    """Wait for the child of the process that was started; give its number."""
    async with asyncio.timeout(10):
        while not ((pid := child_of(plugin)) and takes_sigterm(pid)):  # noqa: ASYNC110 - another process: nothing to await
            await asyncio.sleep(0.001)
        return pid


async def test_the_first_process_of_a_container_ends_during_its_start(
    pytestconfig: pytest.Config, kubelet: FakeKubelet, board: Path, directory: Path
) -> None:
    # The kernel drops a signal that the first process of a namespace has no handler for.
    own = "unshare --user --map-root-user --pid --fork --kill-child"
    command = f"{own} {pytestconfig.getoption('--plugin-command')}"
    for number in range(20):
        async with running(command, board, directory) as plugin:
            pid = await until_it_takes_signals(plugin)
            await asyncio.sleep(number * 0.01)  # how far its start has come
            os.kill(pid, signal.SIGTERM)
            assert await plugin.ended() == 0, f"after {number * 10} ms"
    assert not serving(directory)
