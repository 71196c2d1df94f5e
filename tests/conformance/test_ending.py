# SPDX-License-Identifier: Apache-2.0
"""The plugin ends at a signal, at any moment. During a node's shutdown signals coincide with other events."""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tegra_device_plugin.config.settings import load_plugin
from tegra_device_plugin.plugin import DevicePlugin
from tegra_device_plugin.service import ConfigWatch

from tests.conformance.awaited import eventually
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, Plugin, running, save
from tests.conformance.test_registration import alive, plugin_sockets
from tests.conformance.test_sequences import cut, delete_own_socket

pytestmark = pytest.mark.parametrize("generation", ["1.37"])

COINCIDENCES = 350
SEED = 13

CONFIG = (
    "version: v1\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}\n"
)
ELSEWHERE = CONFIG + "flags: {{plugin: {{metricsAddress: '127.0.0.1:0'}}}}\n"


def serving(directory: Path) -> list[Path]:
    """Give the sockets on which a plugin serves."""
    return [path for path in plugin_sockets(directory) if alive(path)]


class InThisLoop:
    """A plugin in the test's event loop, where a signal and an event can come in the same iteration."""

    def __init__(self, kubelet: FakeKubelet, board: Path, file: Path) -> None:
        self.kubelet = kubelet
        self.file = file
        self._places = {
            "HOST_ROOT": str(board),
            "DEVICE_PLUGIN_DIR": str(kubelet.directory),
            "LOG_LEVEL": "error",
        }
        self._numbers = itertools.cycle(range(2, 8))
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.file.write_text(CONFIG.format(replicas=2))
        watch = ConfigWatch(self.file, lambda: load_plugin(self.file, self._places, {}))
        self._task = asyncio.ensure_future(DevicePlugin(watch).run())
        await asyncio.sleep(0)  # its first step has the handlers of signals

    async def ended(self) -> bool:
        """True if it ends in time, and leaves no socket behind."""
        assert self._task is not None
        done, _ = await asyncio.wait((self._task,), timeout=5)
        if done:
            self._task.result()
        return bool(done) and not serving(self.kubelet.directory)

    def configure(self, text: str) -> None:
        save(self.file, text.format(replicas=next(self._numbers)))
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.fixture
async def plugin(kubelet: FakeKubelet, board: Path, tmp_path: Path) -> AsyncIterator[InThisLoop]:
    """A plugin that has not started yet, beside a kubelet."""
    yield InThisLoop(kubelet, board, tmp_path / "config.yaml")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(number)


EVENTS: dict[str, Callable[[InThisLoop], object]] = {
    "nothing": lambda _plugin: None,
    "unrelated file": lambda plugin: (plugin.kubelet.directory / "DEPRECATION").write_text("again"),
    "own socket goes": lambda plugin: delete_own_socket(plugin.kubelet),
    "stream ends": lambda plugin: cut(plugin.kubelet),
    "kubelet restarts": lambda plugin: plugin.kubelet.restart(),
    "settings change": lambda plugin: plugin.configure(CONFIG),
    "settings that need a new start": lambda plugin: plugin.configure(ELSEWHERE),
}


async def iterations(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_it_ends_at_a_signal_that_coincides_with_an_event(plugin: InThisLoop) -> None:
    chance = random.Random(SEED)  # noqa: S311 - the same coincidences in each run
    for number in range(COINCIDENCES):
        event = list(EVENTS)[number % len(EVENTS)]
        registered, before, between = chance.random() < 0.8, chance.randrange(40), chance.randrange(6)
        await plugin.start()
        if registered:
            await plugin.kubelet.until_allocatable(2)
        await iterations(before)
        happening = EVENTS[event](plugin)
        if isinstance(happening, Awaitable):
            await happening
        await iterations(between)
        os.kill(os.getpid(), signal.SIGTERM)
        where = f"{number}: {event}, registered {registered}, {before} iterations before, {between} between"
        assert await plugin.ended(), where


def takes_sigterm(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << signal.SIGTERM - 1)


def children(plugin: Plugin) -> list[int]:
    pid = plugin.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_the_first_process_of_a_container_ends_during_its_start(
    kubelet: FakeKubelet, board: Path, directory: Path
) -> None:
    # The kernel drops a signal that the first process of a namespace has no handler for.
    namespace = "unshare --user --map-root-user --pid --fork --kill-child"
    for number in range(20):
        async with running(f"{namespace} {DEFAULT_COMMAND}", board, directory) as plugin:
            await eventually(lambda: any(map(takes_sigterm, children(plugin))))
            (pid,) = children(plugin)
            await asyncio.sleep(number * 0.01)  # a later moment of its start each time
            os.kill(pid, signal.SIGTERM)
            # While it imports its modules, the code of the signal.
            assert await plugin.ended() in (0, 128 + signal.SIGTERM), f"after {number * 10} ms"
    assert not serving(directory)


IN_A_CALLBACK = """
import os, runpy, signal, sys, weakref

class Thing:
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "tegra_device_plugin.cli":
            thing = Thing()
            observed = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
            del thing

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["detect", "--help"]
runpy.run_module("tegra_device_plugin", run_name="__main__")
"""


def test_it_ends_at_a_signal_where_python_ignores_exceptions(generation: str) -> None:
    ended = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], capture_output=True, check=False, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, "", "")
