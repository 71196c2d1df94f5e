# SPDX-License-Identifier: Apache-2.0
"""The plugin's side of the telemetry, with relays that answer, fail, hang and die.

The real one is tested apart.
"""

import asyncio
import json
import logging
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from tegra_device_plugin.telemetry.jtop import SOCKET, JtopProbe, Telemetry, Timeouts, read_once

from tests.conformance.awaited import eventually

FULL = {
    "gpu_load_percent": 34.5,
    "gpu_frequency_hz": 306000000,
    "gpu_temperature_celsius": 48.1,
    "gpu_memory_bytes": 126418944,
    "memory_used_bytes": 2000000000,
    "memory_total_bytes": 7989633024,
    "power_mode": "25W",
    "module": "NVIDIA Jetson Orin Nano",
    "part_number": "p3767-0005",
    "jetpack": "6.2",
}
SENT = json.dumps(FULL).encode() + b"\n"


class Relay:
    """SIMULATED: accepts connections below a host root, says some bytes in each, and keeps or closes it."""

    def __init__(self, host: Path, sent: bytes, *, closes: bool = False) -> None:
        self.accepted: list[socket.socket] = []
        path = host / SOCKET
        path.parent.mkdir(parents=True, exist_ok=True)
        self._sent, self._closes = sent, closes
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(connection)
            with suppress(OSError):  # the plugin has enough
                connection.sendall(self._sent)
            if self._closes:
                connection.close()

    def heard(self) -> bytes:
        """All that came by the first connection, until the plugin has closed it."""
        first = self.accepted[0]
        first.settimeout(10)
        return b"".join(iter(lambda: first.recv(4096), b""))

    def close_accepted(self) -> None:
        """Close what is accepted until now. The thread may accept one more, which the plugin had left."""
        for connection in self.accepted:
            connection.close()

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.close_accepted()


@pytest.fixture
def host() -> Iterator[Path]:
    """The root of a host, with a path that is short enough for the relay's socket."""
    with tempfile.TemporaryDirectory(prefix="host-", dir="/tmp") as made:
        yield Path(made)


@contextmanager
def relay(host: Path, sent: bytes, *, closes: bool = False) -> Iterator[Relay]:
    made = Relay(host, sent, closes=closes)
    try:
        yield made
    finally:
        made.end()


@asynccontextmanager
async def running(probe: JtopProbe) -> AsyncIterator[None]:
    task = asyncio.create_task(probe.run())
    try:
        yield
        assert not task.done(), "the probe must never end by itself"
    finally:
        task.cancel()
        ended, _ = await asyncio.wait({task}, timeout=10)
        assert ended, "a cancelled probe must end"


def _sockets() -> set[str]:
    """What this process has open, but for the listing's own descriptor."""
    here = Path("/proc/self/fd")
    return {f"{fd.name} {fd.readlink()}" for fd in here.iterdir() if fd.is_symlink()}


def _left(made: Relay, before: set[str]) -> set[str]:
    """What the plugin still has open: the relay's own ends are closed, also of one accepted since."""
    made.close_accepted()
    return _sockets() - before


async def test_old_telemetry_is_none(host: Path) -> None:
    now = 0.0
    probe = JtopProbe(host, clock=lambda: now)
    with relay(host, SENT):
        async with running(probe):
            await eventually(probe.latest)
            now = 20.0
            assert probe.latest() == Telemetry(**FULL)  # type: ignore[arg-type] # by name
            now = 20.1
            assert probe.latest() is None


async def test_after_a_good_time_a_failure_is_retried_quickly(host: Path) -> None:
    with relay(host, SENT, closes=True) as made:
        async with running(JtopProbe(host, Timeouts(retries=(0.01, 3600.0)))):
            await eventually(lambda: len(made.accepted) >= 3)


async def test_relay_that_comes_later_is_found(host: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    probe = JtopProbe(host, Timeouts(retries=(0.01,)))
    async with running(probe):
        await eventually(lambda: "does not run" in caplog.text)
        with relay(host, SENT):
            await eventually(probe.latest)


# What a relay says, whether it then closes the connection, and the plugin's message.
FAILURES = {
    "says why": (b'{"error": "JtopException: not active"}\n', False, "not active"),
    "says garbage": (b"<html>\n", False, "invalid lines"),
    "floods with one line": (b"x" * 1_000_000, False, "invalid lines"),
    "ends": (b"", True, "has ended"),
    "ends after a sample": (SENT, True, "has ended"),
    "hangs": (b"", False, "no answer"),
    "hangs after a sample": (SENT, False, "no answer"),
}


@pytest.mark.parametrize(("sent", "closes", "reason"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_is_logged_once_and_the_relay_asked_again(
    sent: bytes, closes: bool, reason: str, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seconds = 0.1 if reason == "no answer" else 3600
    timeouts = Timeouts(first=seconds, later=seconds, retries=(0,))
    with relay(host, sent, closes=closes) as made:
        before = _sockets()
        async with running(JtopProbe(host, timeouts)):
            await eventually(lambda: len(made.accepted) >= 3)
        await eventually(lambda: not _left(made, before))
    # One that answers first has two states: one message for each change.
    failures = [record.message for record in caplog.records if "no telemetry" in record.message]
    assert failures and all(reason in message for message in failures)
    assert sent == SENT or len(failures) == 1


@pytest.mark.parametrize("turns", range(20))
async def test_cancelled_at_any_moment_it_ends_and_leaves_nothing(turns: int, host: Path) -> None:
    with relay(host, SENT) as made:
        before = _sockets()
        task = asyncio.create_task(JtopProbe(host).run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait({task}, timeout=10)
        assert ended
        assert task.cancelled()

        await eventually(lambda: not _left(made, before))


async def test_nothing_is_sent_to_the_relay(host: Path) -> None:
    with relay(host, SENT) as made:
        probe = JtopProbe(host)
        async with running(probe):
            await eventually(probe.latest)
        assert await asyncio.to_thread(made.heard) == b""


NOT_FINITE = (
    {
        "gpu_load_percent": "NaN",
        "gpu_temperature_celsius": "-Infinity",
        "gpu_frequency_hz": "Infinity",
        "gpu_memory_bytes": "true",
        "memory_used_bytes": str(10**400),
        "memory_total_bytes": "1.5e3",
        "power_mode": json.dumps("x" * 60000),
        "module": json.dumps("two\nlines"),
        "part_number": json.dumps("\ud800"),
        "jetpack": '""',
    },
    Telemetry(memory_total_bytes=1500),
)
OF_ANOTHER_TYPE = (
    {
        "gpu_load_percent": '"high"',
        "gpu_frequency_hz": "3.06e8",
        "power_mode": "3",
        "module": "null",
        "gpu_temperature_celsius": "48",
        "x": "1",
    },
    Telemetry(gpu_frequency_hz=306000000, gpu_temperature_celsius=48.0),
)


@pytest.mark.parametrize(("odd", "telemetry"), [NOT_FINITE, OF_ANOTHER_TYPE], ids=["values", "types"])
def test_an_invalid_value_is_dropped(odd: dict[str, str], telemetry: Telemetry, host: Path) -> None:
    line = ", ".join(f'"{name}": {value}' for name, value in odd.items())
    with relay(host, f"{{{line}}}\n".encode()):
        assert read_once(host) == telemetry


def test_a_socket_path_that_cannot_be_reached_gives_no_telemetry(
    host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert read_once(host / ("x" * 300)) is None
    assert "path too long" in caplog.text


def _absent(host: Path) -> None:
    """There is not even a directory."""


def _stale(host: Path) -> None:
    """A socket on which nobody listens any more."""
    Relay(host, b"").end()


@pytest.mark.parametrize("prepare", [_absent, _stale])
def test_without_a_relay_there_is_no_sample(
    prepare: Callable[[Path], None], host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prepare(host)
    assert read_once(host) is None
    assert "the relay does not run" in caplog.text


def test_a_single_sample(host: Path) -> None:
    with relay(host, SENT) as made:
        assert read_once(host) == Telemetry(**FULL)  # type: ignore[arg-type] # by name
        assert made.heard() == b""


def test_a_single_sample_is_not_awaited_for_ever(host: Path) -> None:
    with relay(host, b""):
        assert read_once(host, Timeouts(first=0.2)) is None
