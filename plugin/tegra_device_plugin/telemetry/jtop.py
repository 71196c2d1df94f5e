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


async def _samples(client: Client, socket: Path) -> AsyncGenerator[Telemetry]:
    """The samples of one run of the child, which never outlives this. Raises JtopError at the end."""
    if not socket.exists():  # noqa: ASYNC240 - /run is memory
        raise JtopError(f"no {socket}: the service does not run")
    try:
        child = await asyncio.create_subprocess_exec(
            *client.command,
            str(socket),
            str(client.interval),
            stdin=asyncio.subprocess.PIPE,  # open as long as we live: the child ends when it closes
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE_LIMIT,
        )
    except OSError as error:
        raise JtopError(f"cannot start its client: {error}") from error
    assert child.stdin is not None and child.stdout is not None  # noqa: S101 - PIPE above
    try:
        deadline = client.first_deadline
        while True:
            yield _parse(await _line(child.stdout, deadline))
            deadline = client.deadline
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.stdin.close()
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
    """Telemetry of one line; values of unexpected types are dropped. Raises JtopError on anything else."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise JtopError("its client talks nonsense")
    if "error" in message:
        raise JtopError(str(message["error"])[:200])
    known: dict[str, float | int | str | None] = {}
    for field in fields(Telemetry):
        value = message.get(field.name)
        if isinstance(value, bool):
            continue
        if field.name.endswith(("_percent", "_celsius")) and isinstance(value, (int, float)):
            known[field.name] = float(value)
        elif field.name.endswith(("_hz", "_bytes")) and isinstance(value, (int, float)):
            known[field.name] = int(value)
        elif isinstance(value, str) and field.name in ("power_mode", "module", "part_number", "jetpack"):
            known[field.name] = value
    return Telemetry(**known)  # type: ignore[arg-type]  # matched to the fields' types by name, above
