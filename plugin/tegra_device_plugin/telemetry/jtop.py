# SPDX-License-Identifier: Apache-2.0
"""Optional telemetry from the board's jtop service. It enriches; nothing is decided by it.

The service may be absent, hang, die or be of another version, and its client then blocks or raises
whatever it likes. So the client lives in a child process (jtop_client.py) that is killed when it misses a
deadline, and all that the rest of the plugin can notice is that `latest()` is None, and one line in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

_SOCKET = "run/jtop.sock"  # below the host's root; jetson-stats fixes it

_INTERVAL_SECONDS = 5.0  # the service samples for its clients only, and reads the GPU's load to do so
# To the first sample: imports, 1.2 s to connect, 4 to 6 s if the service asks jetson_clocks, one interval.
_FIRST_DEADLINE_SECONDS = 20.0
_DEADLINE_SECONDS = 3 * _INTERVAL_SECONDS
_FRESH_INTERVALS = 4
_RETRY_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
_QUICK_INTERVAL_SECONDS = 0.5  # for a single look
_LINE_LIMIT = 65536  # bytes; a line has under 1,000
_TEXT_LIMIT = 100  # characters of a name; the longest known has about 40
_KILL_SECONDS = 1.0  # a killed child ends in milliseconds, unless it hangs in the kernel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Telemetry:
    """What jtop says; None is "not told". The board facts come from the module's EEPROM."""

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
    """There is no telemetry; the text says why."""


@dataclass(frozen=True)
class Client:
    """How the child is run and how long it may take, in seconds."""

    command: Sequence[str] = (sys.executable, "-m", "tegra_device_plugin.telemetry.jtop_client")
    interval: float = _INTERVAL_SECONDS
    first_deadline: float = _FIRST_DEADLINE_SECONDS
    deadline: float = _DEADLINE_SECONDS
    retries: Sequence[float] = _RETRY_SECONDS


class JtopProbe:
    """Keeps the newest telemetry of the service whose socket stands below a host root."""

    def __init__(
        self, host_root: Path, client: Client | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = host_root / _SOCKET
        self._client = client or Client()
        self._clock = clock
        self._latest: tuple[float, Telemetry] | None = None
        self._said: str | None = None

    def latest(self) -> Telemetry | None:
        """The newest telemetry, unless it is older than 20 s (four intervals)."""
        fresh = _FRESH_INTERVALS * self._client.interval
        if self._latest is None or self._clock() - self._latest[0] > fresh:
            return None
        return self._latest[1]

    async def run(self) -> None:
        """Listen to the service until cancelled, over all its failures."""
        attempt = 0
        while True:
            try:
                listening = _samples(self._client, self._socket)
                async with contextlib.aclosing(listening) as samples:
                    async for telemetry in samples:
                        self._latest = self._clock(), telemetry
                        attempt = 0
                        self._say("jtop: telemetry is there")
            except JtopError as error:
                self._say(f"no telemetry from jtop: {error}")
            await asyncio.sleep(self._client.retries[min(attempt, len(self._client.retries) - 1)])
            attempt += 1

    def _say(self, message: str) -> None:
        """One line per change: a service that is absent for weeks fills no log."""
        if message != self._said:
            logger.info("%s", message)
            self._said = message


def read_once(host_root: Path, client: Client | None = None) -> Telemetry | None:
    """One look, for commands that end; None if jtop does not answer: at once or within 20 s."""

    async def first() -> Telemetry | None:
        quick = replace(client or Client(), interval=_QUICK_INTERVAL_SECONDS)
        async with contextlib.aclosing(_samples(quick, host_root / _SOCKET)) as samples:
            return await anext(samples, None)

    try:
        return asyncio.run(first())
    except JtopError as error:
        logger.info("no telemetry from jtop: %s", error)
        return None


async def _samples(client: Client, service: Path) -> AsyncGenerator[Telemetry]:
    """The samples of one run of the child, which never outlives this. Raises JtopError at the end.

    The child's standard input and output are one socket, which is closed here whatever is in it and whoever
    else has it. Of an asyncio pipe only the reader of all that was written learns the end, and until then
    Python 3.11 waits for a child that is long dead.
    """
    try:
        service.stat()  # noqa: ASYNC240 - /run is memory
    except FileNotFoundError:
        raise JtopError(f"no {service}: the service does not run") from None
    except OSError as error:
        raise JtopError(f"cannot see the service: {error}") from error
    with contextlib.ExitStack() as ends:
        try:
            ours, theirs = map(ends.enter_context, socket.socketpair())
            stdout, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_LIMIT)
            ends.callback(writer.transport.abort)
            child = await asyncio.create_subprocess_exec(
                *client.command,
                str(service),
                str(client.interval),
                stdin=theirs.fileno(),  # open as long as we live: the child ends when it closes
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.DEVNULL,
            )
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread to wait for it
            raise JtopError(f"cannot start its client: {error}") from error
        theirs.close()
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
        raise JtopError("its client talks nonsense") from None
    if not line:
        raise JtopError("its client died")
    return line


def _parse(line: bytes) -> Telemetry:
    """Telemetry of one line; unusable values are dropped. Raises JtopError on anything but a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise JtopError("its client talks nonsense")
    if "error" in message:
        raise JtopError(str(message["error"])[:200])
    known: dict[str, float | int | str | None] = {}
    for field in fields(Telemetry):
        value = message.get(field.name)
        if field.name.endswith(("_percent", "_celsius")):
            known[field.name] = _number(value)
        elif field.name.endswith(("_hz", "_bytes")):
            number = _number(value)
            known[field.name] = None if number is None else int(number)
        else:
            known[field.name] = _text(value)
    return Telemetry(**known)  # type: ignore[arg-type]  # matched to the fields' types by name, above


def _number(value: object) -> float | None:
    """A finite number; Python's JSON also has NaN, Infinity and whole numbers beyond any float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str | None:
    """A name that can stand in a label and in the log, on one line and in UTF-8."""
    if isinstance(value, str) and value.isprintable() and 0 < len(value) <= _TEXT_LIMIT:
        return value
    return None
