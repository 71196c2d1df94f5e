# SPDX-License-Identifier: Apache-2.0
"""Optional telemetry from the board's jtop service. No decision depends on it.

The service is root's, and runs what a client sends to it as a pickle. So no pod may connect to it. A relay on
the board asks it (roles/jtop/files/jtop_relay.py). It writes a line of JSON for each sample into each of its
connections, and reads nothing from them.

Service and relay may be absent, hang, crash or be of another version. So each wait has a deadline. For the
other parts of the plugin, `latest()` is None then.
"""

import asyncio
import contextlib
import json
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

# On the host, and mounted. Not in /run, which is empty when Docker starts the standby instance.
DIRECTORY = "/var/lib/jetson-k3s/jtop"
SOCKET = f"{DIRECTORY[1:]}/relay.sock"  # below the host's root
_INTERVAL_SECONDS = 5.0  # between two samples of the relay
# To the first sample: the start of the relay, 1.2 s to connect, 4 to 6 s if the service runs jetson_clocks.
_FIRST_DEADLINE_SECONDS = 20.0
_DEADLINE_SECONDS = 3 * _INTERVAL_SECONDS
_FRESH_SECONDS = 4 * _INTERVAL_SECONDS
_RETRY_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
_LINE_LIMIT = 65536  # bytes; a line has under 1,000
_TEXT_LIMIT = 100  # characters of a name; the longest known name has about 70
_REASON_LIMIT = 200  # characters of the relay's reason for an end
# A relay sends a sample in 5 s. One that sends more is read no faster than that: it would take a processor.
_PAUSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Telemetry(NamedTuple):
    """A sample of jtop; None is unknown or invalid.

    Of the board's facts, the part number is that of the module's EEPROM, and jtop has the module's name and
    JetPack from tables of its own.
    """

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
    model: str | None = None
    l4t: str | None = None
    gpu: str | None = None
    """The GPU's name: of its device tree node, or on a Thor NVML's."""
    compute_capability: str | None = None


_VERSION = r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,3}"
# Names are free text, and these have a form. An EEPROM that was never written has the number `pÿÿÿÿ-ÿÿÿÿ`.
_FORMS = {
    "part_number": re.compile(r"[a-z][0-9]{4}-[0-9]{4}"),
    # `6.1 (rev1)`, `7.2 GA`
    "jetpack": re.compile(rf"{_VERSION}(?: [ -~]{{1,20}})?"),
    "l4t": re.compile(_VERSION),
    "compute_capability": re.compile(r"[0-9]{1,2}\.[0-9]{1,2}"),
}


class JtopError(Exception):
    """There is no telemetry; the text has the reason."""


class Timeouts(NamedTuple):
    """Deadlines of samples, times between two connections after failures, the least time between samples.

    All are in seconds.
    """

    first: float = _FIRST_DEADLINE_SECONDS
    later: float = _DEADLINE_SECONDS
    retries: Sequence[float] = _RETRY_SECONDS
    pause: float = _PAUSE_SECONDS


class JtopProbe:
    """Keeps the newest telemetry of the relay whose socket is below a host root."""

    def __init__(
        self,
        host_root: Path,
        timeouts: Timeouts | None = None,
        clock: Callable[[], float] = time.monotonic,
        note: Callable[[Telemetry], None] = lambda _: None,
    ) -> None:
        """`note` gets each sample, and must not raise."""
        self._relay = host_root / SOCKET
        self._timeouts = timeouts or Timeouts()
        self._clock = clock
        self._note = note
        self._latest: tuple[float, Telemetry] | None = None
        self._logged: str | None = None

    def latest(self) -> Telemetry | None:
        """The newest telemetry, unless it is older than 20 s (four intervals)."""
        if self._latest is None or self._clock() - self._latest[0] > _FRESH_SECONDS:
            return None
        return self._latest[1]

    async def run(self) -> None:
        """Read the relay's samples until cancelled; retry after failures."""
        attempt = 0
        while True:
            try:
                async with contextlib.aclosing(_samples(self._relay, self._timeouts)) as samples:
                    async for telemetry in samples:
                        self._latest = self._clock(), telemetry
                        attempt = 0
                        self._log("jtop: telemetry is available")
                        self._note(telemetry)
                        await asyncio.sleep(self._timeouts.pause)
            except JtopError as error:
                self._log(f"no telemetry from jtop: {error}")
            await asyncio.sleep(self._timeouts.retries[min(attempt, len(self._timeouts.retries) - 1)])
            attempt += 1

    def _log(self, message: str) -> None:
        """Log one line per change: a service that is absent for weeks fills no log."""
        if message != self._logged:
            logger.info("%s", message)
            self._logged = message


def read_once(host_root: Path, timeouts: Timeouts | None = None) -> Telemetry:
    """Give one sample, for commands that end. Raises JtopError, also if there is none within 20 s."""

    async def first() -> Telemetry:
        async with contextlib.aclosing(_samples(host_root / SOCKET, timeouts or Timeouts())) as samples:
            return await anext(samples)

    return asyncio.run(first())


async def _samples(relay: Path, timeouts: Timeouts) -> AsyncGenerator[Telemetry]:
    """Give the samples of one connection, which is closed at the end. Raises JtopError at the end."""
    try:
        async with asyncio.timeout(timeouts.first):
            reader, writer = await asyncio.open_unix_connection(relay, limit=_LINE_LIMIT)
    except TimeoutError:
        raise JtopError(f"/{SOCKET} is not accepted in {timeouts.first:.0f} s") from None
    except OSError as error:
        raise JtopError(f"no /{SOCKET}: the relay does not run ({error.strerror or error})") from error
    try:
        deadline = timeouts.first
        while True:
            yield _parse(await _line(reader, deadline))
            deadline = timeouts.later
    finally:
        writer.transport.abort()


async def _line(stream: asyncio.StreamReader, deadline: float) -> bytes:
    try:
        async with asyncio.timeout(deadline):
            line = await stream.readline()
    except TimeoutError:
        raise JtopError(f"no answer in {deadline:.0f} s") from None
    except ValueError:  # longer than _LINE_LIMIT
        raise JtopError("the relay sends invalid lines") from None
    except OSError as error:
        raise JtopError(f"the relay has ended ({error.strerror})") from error
    if not line:
        raise JtopError("the relay has ended")
    return line


def _parse(line: bytes) -> Telemetry:
    """Telemetry of one line; unusable values are dropped. Raises JtopError on anything but a JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise JtopError("the relay sends invalid lines")
    if "error" in message:
        reason = str(message["error"])[:_REASON_LIMIT]
        raise JtopError("".join(letter if letter.isprintable() else "?" for letter in reason))
    known: dict[str, float | int | str | None] = {}
    for name in Telemetry._fields:
        value = message.get(name)
        if name.endswith(("_percent", "_celsius")):
            known[name] = _number(value)
        elif name.endswith(("_hz", "_bytes")):
            number = _number(value)
            known[name] = None if number is None else int(number)
        else:
            known[name] = _text(value, _FORMS.get(name))
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


def _text(value: object, form: re.Pattern[str] | None) -> str | None:
    """Give a text that is valid on a line of the log, and has the form of its kind, else None."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _TEXT_LIMIT:
        return None
    return value if form is None or form.fullmatch(value) else None
