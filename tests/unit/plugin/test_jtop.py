# SPDX-License-Identifier: Apache-2.0
"""The plugin's side of the telemetry, with relays that answer, fail, hang and die.

The real one is tested apart.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tegra_device_plugin.telemetry.jtop import JtopError, JtopProbe, Telemetry, Timeouts, read_once

from tests.conformance.awaited import eventually
from tests.unit.plugin.jtop_relay import Relay, relay

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
    "model": "NVIDIA Jetson Orin Nano Developer Kit",
    "l4t": "36.4.3",
    "gpu": "gpu",
    "compute_capability": "8.7",
}
SENT = json.dumps(FULL).encode() + b"\n"


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
    "says why with control characters": (
        b'{"error": "\\u001b[2J\\nINFO all is well"}\n',
        False,
        "?[2J?INFO all",
    ),
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
    timeouts = Timeouts(first=seconds, later=seconds, retries=(0,), pause=0)
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


async def test_a_relay_that_sends_without_a_pause_takes_no_processor(host: Path) -> None:
    noted: list[Telemetry] = []
    with relay(host, SENT * 100):
        async with running(JtopProbe(host, Timeouts(pause=3600), note=noted.append)):
            await eventually(lambda: noted)
            for _ in range(100):
                await asyncio.sleep(0)
    assert len(noted) == 1


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
        "model": json.dumps("\u202etik"),
        "l4t": '"36.4.3; rm"',
        "gpu": '"\\u001b[31m"',
        "compute_capability": '"8.7.1"',
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
        "l4t": "36.4",
        "part_number": json.dumps("p\u00ff\u00ff\u00ff\u00ff-\u00ff\u00ff\u00ff\u00ff"),
        "compute_capability": "8.7",
        "gpu": '{"name": "gpu"}',
        "model": '["a"]',
    },
    Telemetry(gpu_frequency_hz=306000000, gpu_temperature_celsius=48.0),
)


@pytest.mark.parametrize(("odd", "telemetry"), [NOT_FINITE, OF_ANOTHER_TYPE], ids=["values", "types"])
def test_an_invalid_value_is_dropped(odd: dict[str, str], telemetry: Telemetry, host: Path) -> None:
    line = ", ".join(f'"{name}": {value}' for name, value in odd.items())
    with relay(host, f"{{{line}}}\n".encode()):
        assert read_once(host) == telemetry


def test_a_socket_path_that_cannot_be_reached_gives_no_telemetry(host: Path) -> None:
    with pytest.raises(JtopError, match="path too long"):
        read_once(host / ("x" * 300))


def _absent(host: Path) -> None:
    """There is not even a directory."""


def _stale(host: Path) -> None:
    """A socket on which nobody listens any more."""
    Relay(host, b"").end()


@pytest.mark.parametrize("prepare", [_absent, _stale])
def test_without_a_relay_there_is_no_sample(prepare: Callable[[Path], None], host: Path) -> None:
    prepare(host)
    with pytest.raises(JtopError, match="the relay does not run"):
        read_once(host)


def test_a_single_sample(host: Path) -> None:
    with relay(host, SENT) as made:
        assert read_once(host) == Telemetry(**FULL)  # type: ignore[arg-type] # by name
        assert made.heard() == b""


def test_a_single_sample_is_not_awaited_for_ever(host: Path) -> None:
    with relay(host, b""), pytest.raises(JtopError, match="no answer"):
        read_once(host, Timeouts(first=0.2))
