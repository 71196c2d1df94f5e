# SPDX-License-Identifier: Apache-2.0
"""The telemetry's parent side, with clients that answer, fail, hang and die. The real one is tested apart."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tegra_device_plugin.telemetry import jtop
from tegra_device_plugin.telemetry.jtop import Client, JtopProbe, Telemetry, read_once
from tegra_device_plugin.telemetry.jtop_client import _telemetry

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
SAY_FULL = f"print('''{json.dumps(FULL)}''', flush=True)"
WAIT = "import sys; sys.stdin.read()"
IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"

TELL_INTERVAL = f"import json, sys; print(json.dumps({{'module': sys.argv[2]}}), flush=True)\n{WAIT}"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host root with something where the service's socket should be."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/jtop.sock").touch()
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    pids: list[int] = []
    create = asyncio.create_subprocess_exec

    async def recording(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        child = await create(*command, **options)
        pids.append(child.pid)
        return child

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recording)
    return pids


def client(code: str, *, first: float = 10.0, later: float = 10.0, retry: float = 60.0) -> Client:
    return Client((sys.executable, "-c", code), first_deadline=first, deadline=later, retries=(retry,))


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


async def test_old_telemetry_is_none(host: Path) -> None:
    now = 0.0
    probe = JtopProbe(host, client(f"{SAY_FULL}\n{WAIT}"), clock=lambda: now)
    async with running(probe):
        await eventually(probe.latest)
        now = 20.0
        assert probe.latest() is not None
        now = 20.1
        assert probe.latest() is None


async def test_after_a_good_time_a_failure_is_retried_quickly(host: Path, started: list[int]) -> None:
    options = Client((sys.executable, "-c", SAY_FULL), retries=(0.01, 3600.0))
    async with running(JtopProbe(host, options)):
        await eventually(lambda: len(started) >= 3)


async def test_service_that_comes_later_is_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    probe = JtopProbe(tmp_path, client(f"{SAY_FULL}\n{WAIT}", retry=0.01))
    async with running(probe):
        await eventually(lambda: "does not run" in caplog.text)
        (tmp_path / "run").mkdir()
        (tmp_path / "run/jtop.sock").touch()
        await eventually(probe.latest)


async def test_an_unstartable_client_is_survived(host: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(JtopProbe(host, Client(("/nonexistent",)))):
        await eventually(lambda: "cannot start" in caplog.text)


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()  # true of a zombie, too


def _descriptors() -> set[str]:
    """What this process has open, but for the listing's own descriptor."""
    here = Path("/proc/self/fd")
    return {f"{fd.name} {fd.readlink()}" for fd in here.iterdir() if fd.is_symlink()}


def _children() -> set[str]:
    """The processes that this one has started and not yet buried."""
    found: set[str] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended since
            found.update(children.read_text().split())
    return found


# What a client does, and its message.
FAILURES = {
    "not installed": ('print(\'{"error": "jetson-stats is not installed"}\')', "is not installed"),
    "says garbage": (f"print('<html>', flush=True)\n{WAIT}", "invalid lines"),
    "floods with one line": (f"print('x' * 1000000, flush=True)\n{WAIT}", "invalid lines"),
    "dies": ("raise SystemExit(3)", "has ended"),
    "hangs": (WAIT, "no answer"),
    "hangs and ignores signals": (IGNORE, "no answer"),
    "has closed its output": (f"{SAY_FULL}\nimport os; os.close(1)\n{WAIT}", "no answer"),
}


@pytest.mark.parametrize(("code", "reason"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_is_logged_once_and_the_client_restarted(
    code: str, reason: str, host: Path, started: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answers, hangs, before = SAY_FULL in code, reason == "no answer", _descriptors()
    # A start takes longer than 0.1 s where the machine is busy.
    limits = {"first": 0.1 if hangs and not answers else 3600, "later": 0.1 if hangs else 3600}
    async with running(JtopProbe(host, client(code, **limits, retry=0))):
        await eventually(lambda: len(started) >= 3)
    assert not _descriptors() - before
    # Cancelled while it waits for a killed child, it leaves the burial to asyncio's thread.
    await eventually(lambda: not any(map(_exists, started)))
    # One that answers first has two states: one message for each change.
    failures = [record.message for record in caplog.records if "no telemetry" in record.message]
    assert failures and all(reason in message for message in failures)
    assert answers or len(failures) == 1


async def test_a_grandchild_with_the_output_open_is_not_awaited(host: Path) -> None:
    before, file = _descriptors(), host / "pids"
    code = f"""
import subprocess, sys
grandchild = subprocess.Popen(["sleep", "3600"])
open({str(file)!r}, "a").write(f"{{grandchild.pid}}\\n")
print("nonsense", flush=True)
"""
    try:
        async with running(JtopProbe(host, client(code, retry=0.01))):
            await eventually(lambda: file.exists() and len(file.read_text().split()) >= 3)
        assert not _descriptors() - before
    finally:
        for pid in file.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("turns", range(20))
async def test_cancelled_at_any_moment_it_ends_and_leaves_nothing(turns: int, host: Path) -> None:
    before, children = _descriptors(), _children()
    shell = Client(("sh", "-c", f"echo '{json.dumps(FULL)}'; exec cat"))
    task = asyncio.create_task(JtopProbe(host, shell).run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    ended, _ = await asyncio.wait({task}, timeout=10)
    assert ended
    assert task.cancelled()
    await asyncio.sleep(0)  # a closed transport closes its descriptor in the loop's next turn
    assert not _descriptors() - before
    await eventually(lambda: _children() <= children)


async def test_no_child_is_started_beside_one_that_cannot_be_killed(
    host: Path, started: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    spared: list[int] = []
    monkeypatch.setattr(jtop, "_KILL_SECONDS", 0.01)
    monkeypatch.setattr(asyncio.subprocess.Process, "kill", lambda self: spared.append(self.pid))
    code = "import time; print('nonsense', flush=True); time.sleep(3600)"
    try:
        async with running(JtopProbe(host, client(code, retry=0.01))):
            await eventually(lambda: "was killed and has not ended" in caplog.text)
            assert len(started) == 1
            os.kill(spared[0], signal.SIGKILL)
            await eventually(lambda: len(started) == 2)
    finally:
        for pid in set(started) - {spared[0]}:
            os.kill(pid, signal.SIGKILL)


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
    found = read_once(host, client(f"print({f'{{{line}}}'!r}, flush=True)\n{WAIT}"))
    assert found == telemetry


async def test_by_default_the_client_gives_a_sample_every_5_seconds(host: Path) -> None:
    probe = JtopProbe(host, Client((sys.executable, "-c", TELL_INTERVAL)))
    async with running(probe):
        await eventually(probe.latest)
    assert probe.latest() == Telemetry(module="5.0")


def test_a_socket_path_that_cannot_be_read_gives_no_telemetry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert read_once(tmp_path / ("x" * 300)) is None  # ENAMETOOLONG: root never gets EACCES
    assert "File name too long" in caplog.text


def test_a_client_that_cannot_be_started_gives_no_telemetry(
    host: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_thread)
    assert read_once(host, client(WAIT)) is None
    assert "can't start new thread" in caplog.text


def test_a_single_sample_has_a_short_interval(host: Path) -> None:
    assert read_once(host, client(TELL_INTERVAL)) == Telemetry(module="0.5")


def test_a_single_sample(host: Path, tmp_path: Path) -> None:
    children = _children()
    assert read_once(host, client(f"{SAY_FULL}\n{WAIT}")) == Telemetry(**FULL)  # type: ignore[arg-type]
    assert _children() <= children, "the client is gone when the answer is there"
    assert read_once(host, client(WAIT, first=0.2)) is None
    (host / "run/jtop.sock").unlink()
    assert read_once(host) is None


PLUGIN = Path(__file__).parents[3] / "plugin"


def test_real_client_without_jetson_stats_reports_it_and_ends(
    host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # -S leaves out site-packages, where jetson-stats would be; the plugin's own code is named by PYTHONPATH.
    python = ("env", f"PYTHONPATH={PLUGIN}", sys.executable, "-S")
    command = (*python, "-m", "tegra_device_plugin.telemetry.jtop_client")
    assert read_once(host, Client(command)) is None
    assert "jetson-stats is not installed" in caplog.text
    arguments = (*command, "/nonexistent", "1")
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as ends:
        assert ends.wait(10) == 1


# A client that blocks for ever, in the place of jetson-stats'.
BLOCKED = """
import sys, threading, types
from tegra_device_plugin.telemetry.jtop_client import main
jtop = types.ModuleType("jtop")
service = jtop.service = types.ModuleType("jtop.service")
def block(interval):
    sys.stdout.write("hanging\\n")
    sys.stdout.flush()
    threading.Event().wait()
jtop.jtop = block
sys.modules.update({"jtop": jtop, "jtop.service": service})
sys.exit(main("/x", 1.0))
"""


@pytest.mark.parametrize("read", [0, socket.MSG_PEEK], ids=["all read", "unread lines"])
def test_real_client_ends_with_its_parent(read: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command, end = (sys.executable, "-c", BLOCKED), theirs.fileno()
        environment = os.environ | {"PYTHONPATH": str(PLUGIN)}
        child = subprocess.Popen(command, stdin=end, stdout=end, env=environment)
        try:
            assert ours.recv(8, socket.MSG_WAITALL | read) == b"hanging\n"
            ours.close()
            assert child.wait(10) == 0
        finally:
            child.kill()
            child.wait()


def test_the_facts_of_jetson_stats_are_converted_to_base_units() -> None:
    """Of its dictionaries, in KiB, kHz, percent and degrees Celsius."""
    facts = SimpleNamespace(
        gpu={"gpu": {"status": {"load": 12.5}, "freq": {"cur": 306000}}},
        memory={"RAM": {"tot": 8, "used": 4, "shared": 2}},
        temperature={"cpu": {"temp": 50.0}, "gpu": {"temp": 41.5, "online": True}},
        nvpmodel=SimpleNamespace(name="15W"),
        board={"hardware": {"Module": "Orin Nano", "P-Number": "p3767-0005", "Jetpack": "6.2"}},
    )
    assert _telemetry(facts) == {
        "gpu_load_percent": 12.5,
        "gpu_frequency_hz": 306_000_000,
        "gpu_temperature_celsius": 41.5,
        "memory_total_bytes": 8192,
        "memory_used_bytes": 4096,
        "gpu_memory_bytes": 2048,
        "power_mode": "15W",
        "module": "Orin Nano",
        "part_number": "p3767-0005",
        "jetpack": "6.2",
    }


def test_facts_that_a_version_or_a_board_lacks_are_left_out() -> None:
    off = {"GPU": {"temp": -256.0, "online": False}}
    facts = SimpleNamespace(board={}, gpu={}, memory=None, nvpmodel=None, temperature=off)
    assert _telemetry(facts) == {}
