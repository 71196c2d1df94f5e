# SPDX-License-Identifier: Apache-2.0
"""Optional telemetry from the board's jtop service. No decision depends on it.

The service may be absent, hang, crash or be of another version. Then its client blocks or raises any
exception. So the client runs in a child process (jtop_client.py) that is killed after a deadline. For the
other parts of the plugin, `latest()` is None then.
"""

import asyncio
import contextlib
import json
import logging
import math
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

SOCKET = "run/jtop.sock"  # below the host's root; a constant of jetson-stats
_INTERVAL_SECONDS = 5.0  # the service samples for its clients only, and reads the GPU's load to do so
# To the first sample: imports, 1.2 s to connect, 4 to 6 s if the service runs jetson_clocks, one interval.
_FIRST_DEADLINE_SECONDS = 20.0
_DEADLINE_SECONDS = 3 * _INTERVAL_SECONDS
_FRESH_INTERVALS = 4
_RETRY_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
_QUICK_INTERVAL_SECONDS = 0.5  # for a single sample
_LINE_LIMIT = 65536  # bytes; a line has under 1,000
_TEXT_LIMIT = 100  # characters of a name; the longest known name has about 40
_KILL_SECONDS = 1.0  # a killed child ends in milliseconds, unless it hangs in the kernel

logger = logging.getLogger(__name__)


class Telemetry(NamedTuple):
    """A sample of jtop; None is unknown. The board facts come from the module's EEPROM."""

    gpu_load_percent: float | None = None
    gpu_frequency_hz: int | None = None
    gpu_temperature_celsius: float | None = None
    gpu_memory_bytes: int | None = None  # the part of the memory that the GPU uses
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_mode: str | None = None
    module: str | None = None
    part_number: str | None = None
    jetpack: str | None = None


class JtopError(Exception):
    """There is no telemetry; the text has the reason."""


class Client(NamedTuple):
    """The child's command and deadlines, in seconds."""

    command: Sequence[str] = (sys.executable, "-m", "tegra_device_plugin.telemetry.jtop_client")
    interval: float = _INTERVAL_SECONDS
    first_deadline: float = _FIRST_DEADLINE_SECONDS
    deadline: float = _DEADLINE_SECONDS
    retries: Sequence[float] = _RETRY_SECONDS


class JtopProbe:
    """Keeps the newest telemetry of the service whose socket is below a host root."""

    def __init__(
        self, host_root: Path, client: Client | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = host_root / SOCKET
        self._client = client or Client()
        self._clock = clock
        self._latest: tuple[float, Telemetry] | None = None
        self._logged: str | None = None
        self._children: list[Process] = []

    def latest(self) -> Telemetry | None:
        """The newest telemetry, unless it is older than 20 s (four intervals)."""
        fresh = _FRESH_INTERVALS * self._client.interval
        if self._latest is None or self._clock() - self._latest[0] > fresh:
            return None
        return self._latest[1]

    async def run(self) -> None:
        """Read the service's samples until cancelled; retry after failures."""
        attempt = 0
        while True:
            try:
                found = _samples(self._client, self._socket, self._children)
                async with contextlib.aclosing(found) as samples:
                    async for telemetry in samples:
                        self._latest = self._clock(), telemetry
                        attempt = 0
                        self._log("jtop: telemetry is available")
            except JtopError as error:
                self._log(f"no telemetry from jtop: {error}")
            await asyncio.sleep(self._client.retries[min(attempt, len(self._client.retries) - 1)])
            attempt += 1

    def _log(self, message: str) -> None:
        """Log one line per change: a service that is absent for weeks fills no log."""
        if message != self._logged:
            logger.info("%s", message)
            self._logged = message


def read_once(host_root: Path, client: Client | None = None) -> Telemetry | None:
    """Give one sample, for commands that end; None if jtop does not answer within 20 s."""

    async def first() -> Telemetry | None:
        quick = (client or Client())._replace(interval=_QUICK_INTERVAL_SECONDS)
        async with contextlib.aclosing(_samples(quick, host_root / SOCKET, [])) as samples:
            return await anext(samples, None)

    try:
        return asyncio.run(first())
    except JtopError as error:
        logger.info("no telemetry from jtop: %s", error)
        return None


async def _samples(client: Client, service: Path, children: list[Process]) -> AsyncGenerator[Telemetry]:
    """Give the samples of one child, which is killed at the end. Raises JtopError at the end.

    `children` has earlier children that may still run, such as a process that hangs in the kernel. Each takes
    a thread of asyncio. So no child is started beside another child.

    The child's standard input and output are one socket, which is closed here with unread data in it, and
    while a grandchild has it open. asyncio reports the end of a pipe only after all its data was read. Until
    then, Python 3.11 waits for a child that has ended.
    """
    children[:] = [child for child in children if child.returncode is None]
    if children:
        raise JtopError(f"its last client, process {children[0].pid}, was killed and has not ended")
    try:
        service.stat()  # noqa: ASYNC240 - /run is memory
    except OSError as error:
        raise JtopError(f"no {service}: the service does not run ({error.strerror})") from error
    with contextlib.ExitStack() as ends:
        try:
            ours, theirs = map(ends.enter_context, socket.socketpair())
            stdout, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_LIMIT)
            ends.callback(writer.transport.abort)
            child = await asyncio.create_subprocess_exec(
                *client.command,
                str(service),
                str(client.interval),
                stdin=theirs.fileno(),  # open until this process ends: the child ends with it
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.DEVNULL,
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread to wait for it
            raise JtopError(f"cannot start its client: {error}") from error
        theirs.close()
        children.append(child)
        try:
            deadline = client.first_deadline
            while True:
                yield _parse(await _line(stdout, deadline))
                deadline = client.deadline
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KILL_SECONDS):
                    await child.wait()


async def _line(stream: asyncio.StreamReader, deadline: float) -> bytes:
    try:
        async with asyncio.timeout(deadline):
            line = await stream.readline()
    except TimeoutError:
        raise JtopError(f"no answer in {deadline:.0f} s") from None
    except ValueError:  # longer than _LINE_LIMIT
        raise JtopError("its client prints invalid lines") from None
    if not line:
        raise JtopError("its client has ended")
    return line


def _parse(line: bytes) -> Telemetry:
    """Telemetry of one line; unusable values are dropped. Raises JtopError on anything but a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise JtopError("its client prints invalid lines")
    if "error" in message:
        raise JtopError(str(message["error"])[:200])
    known: dict[str, float | int | str | None] = {}
    for name in Telemetry._fields:
        value = message.get(name)
        if name.endswith(("_percent", "_celsius")):
            known[name] = _number(value)
        elif name.endswith(("_hz", "_bytes")):
            number = _number(value)
            known[name] = None if number is None else int(number)
        else:
            known[name] = _text(value)
    return Telemetry(**known)  # type: ignore[arg-type]  # matched to the fields' types by name, above


def _number(value: object) -> float | None:
    """Give a finite number, else None. Python's JSON also has NaN, Infinity and integers beyond any float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str | None:
    """Give a text that is valid in a label and on a line of the log, else None."""
    if isinstance(value, str) and value.isprintable() and 0 < len(value) <= _TEXT_LIMIT:
        return value
    return None
