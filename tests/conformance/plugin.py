# SPDX-License-Identifier: Apache-2.0
"""The plugin under test: a process, started by a command line, watched from outside."""

import asyncio
import shlex
import signal
import socket
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.conformance.awaited import SECONDS, eventually

DEFAULT_COMMAND = (
    f"{shlex.quote(sys.executable)} -m tegra_device_plugin run "
    "--host-root={root} --device-plugin-dir={dir}"
)
EVENT_DRIVEN_COMMAND = DEFAULT_COMMAND.replace("tegra_device_plugin", "tests.conformance.event_driven", 1)
# What Kubernetes grants it (the manifest's terminationGracePeriodSeconds).
GRACE_SECONDS = 10.0
_ENDING = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def save(file: Path, text: str) -> None:
    """Write as an editor does: a plugin that reads meanwhile gets the old text or the new one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def page(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


class Node:
    """The plugin's files on a node whose GPU is shared."""

    def __init__(self, place: Path) -> None:
        self.config = place / "config.yaml"
        self.library = place / "libtegra-gpu-limit.so"
        self.limit = place / "limit"
        self.library.write_bytes(b"no program loads it")

    def share(self, sharing: str) -> None:
        save(self.config, f"version: v1\nsharing: {{{sharing}}}\n")

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            f"--config={self.config}",
            f"--gpu-limit-dir={self.limit}",
            f"--gpu-limit-library={self.library}",
        )


class Plugin:
    """A running plugin process. `may_end`: the test has ended it, or waits for it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log
        self.may_end = False

    def signal(self, number: int) -> None:
        self.may_end |= number in _ENDING
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; return the exit code. Raises AssertionError after GRACE_SECONDS."""
        self.may_end = True
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                return await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"still there {GRACE_SECONDS:g} s after a signal") from None

    async def until_logged(self, text: str) -> None:
        try:
            await eventually(lambda: text in self.log.read_text(), SECONDS)
        except TimeoutError:
            raise AssertionError(f"within {SECONDS:g} s its log had no {text!r}") from None

    def threads(self) -> Counter[str]:
        names: Counter[str] = Counter()
        for thread in self._proc.joinpath("task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                names[thread.joinpath("comm").read_text().strip()] += 1
        return names

    def descriptors(self) -> int:
        return len(list(self._proc.joinpath("fd").iterdir()))

    def open_files(self) -> list[str]:
        files = []
        for entry in self._proc.joinpath("fd").iterdir():
            with suppress(FileNotFoundError):  # it has just been closed
                files.append(str(entry.readlink()))
        return files

    def private_kib(self) -> int:
        rollup = self._proc.joinpath("smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))

    @property
    def _proc(self) -> Path:
        return Path("/proc", str(self.process.pid))


def mounting(mounts: Mapping[Path, Path]) -> str:
    """Give the start of a command line that runs a command with these mounts, by source."""
    for directory in (*mounts.keys(), *mounts.values()):
        directory.mkdir(parents=True, exist_ok=True)
    binds = [f"mount --bind {source} {target}" for source, target in mounts.items()]
    script = " && ".join([*binds, 'exec "$@"'])
    return f"unshare --user --map-root-user --mount sh -c {shlex.quote(script)} sh"


@asynccontextmanager
async def running(command: str, root: Path, directory: Path, *more: str) -> AsyncIterator[Plugin]:
    """Run the plugin on the host tree `root` and the socket directory `directory`, with `more` arguments.

    A wait is cancelled when the plugin ends by itself: an AssertionError with the exit code, and the log is
    on standard error.
    """
    arguments = [part.format(root=root, dir=directory) for part in shlex.split(command)]
    log = directory.parent / f"plugin-{len(list(directory.parent.glob('plugin-*.log')))}.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(*arguments, *more, stdout=stderr, stderr=stderr)
    plugin = Plugin(process, log)
    try:
        async with _alive(plugin):
            yield plugin
    except BaseException:
        sys.stderr.write(f"--- {log}\n{log.read_text()}")
        raise
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _alive(plugin: Plugin) -> AsyncIterator[None]:
    """Break off what is awaited inside when the plugin ends and may not; raises AssertionError then."""
    end = asyncio.ensure_future(plugin.process.wait())
    try:
        # A deadline that is never, until the plugin ends: then it is now.
        async with asyncio.timeout(None) as life:
            end.add_done_callback(lambda _: None if plugin.may_end else life.reschedule(0))
            try:
                yield
            finally:
                plugin.may_end = True
    except TimeoutError:
        if life.expired():
            raise AssertionError(f"the plugin ended by itself with exit code {end.result()}") from None
        raise
    finally:
        end.cancel()
