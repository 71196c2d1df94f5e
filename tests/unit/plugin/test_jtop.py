# SPDX-License-Identifier: Apache-2.0
"""The telemetry's parent side, with clients that answer, fail, hang and die. The real one is tested apart."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tegra_device_plugin.telemetry.jtop import Client, JtopProbe, Telemetry, read_once

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


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host root with something where the service's socket should be."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/jtop.sock").touch()
    return tmp_path


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
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for what another process does, which sends no event."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing to await: a log line, a process
            await asyncio.sleep(0.01)


async def test_samples_become_the_latest_telemetry(host: Path) -> None:
    probe = JtopProbe(host, client(f"{SAY_FULL}\n{WAIT}"))
    assert probe.latest() is None
    async with running(probe):
        await eventually(probe.latest)
    assert probe.latest() == Telemetry(**FULL)  # type: ignore[arg-type]


async def test_old_telemetry_is_none(host: Path) -> None:
    now = 0.0
    probe = JtopProbe(host, client(f"{SAY_FULL}\n{WAIT}"), clock=lambda: now)
    async with running(probe):
        await eventually(probe.latest)
        now = 20.0
        assert probe.latest() is not None
        now = 20.1
        assert probe.latest() is None


FAILURES = {
    "not installed": ('print(\'{"error": "jetson-stats is not installed"}\')', "is not installed"),
    "says garbage": (f"print('<html>', flush=True)\n{WAIT}", "nonsense"),
    "says another JSON": (f"print('[1]', flush=True)\n{WAIT}", "nonsense"),
    "floods": (f"print('x' * 200000, flush=True)\n{WAIT}", "nonsense"),
    "dies": ("raise SystemExit(3)", "died"),
    "hangs": (WAIT, "no answer"),
    "hangs and ignores signals": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)",
        "no answer",
    ),
    "goes silent": (f"{SAY_FULL}\n{WAIT}", "no answer"),
}


@pytest.mark.parametrize(("code", "reason"), FAILURES.values(), ids=FAILURES)
async def test_failures_are_one_log_line(
    code: str, reason: str, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    runs = host / "runs"
    counting = f"open({str(runs)!r}, 'a').write('x')\n{code}"
    probe = JtopProbe(host, client(counting, first=0.5, later=0.2, retry=0.01))
    async with running(probe):
        await eventually(lambda: runs.exists() and len(runs.read_text()) >= 3)
    # One that answers first has two states to tell; each is told once a change.
    failures = [record.message for record in caplog.records if "no telemetry" in record.message]
    assert failures
    assert all(reason in message for message in failures)
    if "print('''" not in code:
        assert len(failures) == 1


async def test_after_a_good_time_a_failure_is_retried_quickly(host: Path) -> None:
    runs = host / "runs"
    counting = f"open({str(runs)!r}, 'a').write('x')\n{SAY_FULL}"
    options = Client((sys.executable, "-c", counting), retries=(0.01, 3600.0))
    async with running(JtopProbe(host, options)):
        await eventually(lambda: runs.exists() and len(runs.read_text()) >= 3)


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
    return Path(f"/proc/{pid}").exists()


async def _pid_of_child(host: Path, while_running: Callable[[int], Awaitable[None]]) -> int:
    file = host / "pid"
    code = f"import os; open({str(file)!r}, 'w').write(str(os.getpid()))\n{SAY_FULL}\n{WAIT}"
    probe = JtopProbe(host, client(code))
    async with running(probe):
        await eventually(probe.latest)
        pid = int(file.read_text())
        await while_running(pid)
    return pid


async def test_cancelling_ends_the_child(host: Path) -> None:
    async def alive(pid: int) -> None:
        assert _exists(pid)

    assert not _exists(await _pid_of_child(host, alive))


async def test_values_of_other_types_are_dropped(host: Path) -> None:
    odd = {"gpu_load_percent": "high", "gpu_frequency_hz": 3.06e8, "power_mode": 3, "module": None, "x": 1}
    odd |= {"memory_total_bytes": True, "gpu_temperature_celsius": 48}
    probe = JtopProbe(host, client(f"print('''{json.dumps(odd)}''', flush=True)\n{WAIT}"))
    async with running(probe):
        await eventually(probe.latest)
    assert probe.latest() == Telemetry(gpu_frequency_hz=306000000, gpu_temperature_celsius=48.0)


def test_a_single_look(host: Path, tmp_path: Path) -> None:
    told = read_once(host, client(f"{SAY_FULL}\n{WAIT}"))
    assert told is not None
    assert told.power_mode == "25W"
    assert read_once(host, client(WAIT, first=0.2)) is None
    (host / "run/jtop.sock").unlink()
    assert read_once(host) is None


def test_real_client_without_jetson_stats_says_so(host: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    # -S leaves out site-packages, where jetson-stats would be; the plugin's own code is named by PYTHONPATH.
    here = Path(__file__).parents[3] / "plugin"
    command = (
        "env",
        f"PYTHONPATH={here}",
        sys.executable,
        "-S",
        "-m",
        "tegra_device_plugin.telemetry.jtop_client",
    )
    assert read_once(host, Client(command)) is None
    assert "jetson-stats is not installed" in caplog.text


async def test_real_client_ends_with_its_parent(host: Path) -> None:
    blocked = "import sys, types, time, threading\n"
    blocked += "jtop = types.ModuleType('jtop'); service = jtop.service = types.ModuleType('jtop.service')\n"
    blocked += "def hang(interval): print('hanging', flush=True); threading.Event().wait()\n"
    blocked += "jtop.jtop = hang; sys.modules.update({'jtop': jtop, 'jtop.service': service})\n"
    blocked += "from tegra_device_plugin.telemetry.jtop_client import main; sys.exit(main('/x', 1.0))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "plugin")}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        blocked,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(10):
            assert await child.stdout.readline() == b"hanging\n"
            child.stdin.close()
            assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
