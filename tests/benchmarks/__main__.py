# SPDX-License-Identifier: Apache-2.0
"""Measure a plugin from outside, on a simulated board with a simulated kubelet; print a table."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import boards
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, Plugin, running

BOARD = "agxorin-jp6"
WARM_UP = 300
_MS, _US = 1e3, 1e6


@dataclass(frozen=True)
class Result:
    """One line of the table; `aim` is an upper limit in the same unit."""

    what: str
    value: float
    unit: str
    aim: float | None = None
    detail: str = ""


async def measure(command: str, rounds: int, idle_seconds: float) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as parent:
        root, directory = Path(parent, "host"), Path(parent, "device-plugins")
        boards.build(boards.load()[BOARD], root)
        async with FakeKubelet(directory, "1.20") as kubelet:
            results = [await start_to_register(command, root, kubelet, rounds)]
            async with running(command, root, directory) as plugin:
                await kubelet.until_allocatable()
                results += [*await allocate(kubelet), await restart_to_register(kubelet, rounds)]
                results.append(await health_to_message(root, kubelet))
                results += [*memory(plugin), *await idle(plugin, idle_seconds)]
    return results


async def compare(command: str, other: str, rounds: int) -> str:
    """Start both plugins in turns, in the same busy moments of the machine; give the medians."""
    commands = {"this": command, "other": other}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in commands}
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as parent:
        root, directory = Path(parent, "host"), Path(parent, "device-plugins")
        boards.build(boards.load()[BOARD], root)
        async with FakeKubelet(directory, "1.20") as kubelet:
            for _ in range(rounds):
                for name, started in commands.items():
                    for result in await start(started, root, kubelet):
                        found[name].setdefault(f"{result.what} ({result.unit})", []).append(result.value)
    lines = [f"{'':<30}{'this':>9}{'other':>9}{'ratio':>8}"]
    for what, values in found["this"].items():
        mine, others = statistics.median(values), statistics.median(found["other"][what])
        lines.append(f"{what:<30}{mine:>9.1f}{others:>9.1f}{mine / others:>8.2f}")
    return "\n".join(lines)


async def start(command: str, root: Path, kubelet: FakeKubelet) -> list[Result]:
    """Time, processor time and memory of one plugin until the kubelet has its devices."""
    kubelet.requests.clear()
    begin = time.perf_counter()
    async with running(command, root, kubelet.directory) as plugin:
        await kubelet.until(lambda: bool(kubelet.requests), "registration")
        taken = time.perf_counter() - begin
        await kubelet.until_allocatable()
        used = time.clock_gettime(cpu_clock(plugin))
        return [
            Result("start to Register", taken * _MS, "ms"),
            Result("CPU of a start", used * _MS, "ms"),
            *memory(plugin),
        ]


async def start_to_register(command: str, root: Path, kubelet: FakeKubelet, rounds: int) -> Result:
    taken = []
    for _ in range(rounds):
        kubelet.requests.clear()
        begin = time.perf_counter()
        async with running(command, root, kubelet.directory):
            await kubelet.until(lambda: bool(kubelet.requests), "registration")
            taken.append(time.perf_counter() - begin)
    return Result("start to Register", statistics.median(taken) * _MS, "ms", 300, _spread(taken, _MS))


async def restart_to_register(kubelet: FakeKubelet, rounds: int) -> Result:
    taken = []
    for _ in range(rounds):
        await kubelet.until_allocatable()
        await kubelet.stop()
        kubelet.requests.clear()
        begin = time.perf_counter()
        await kubelet.start()
        await kubelet.until(lambda: bool(kubelet.requests), "registration")
        taken.append(time.perf_counter() - begin)
    await kubelet.until_allocatable()
    median = statistics.median(taken) * _MS
    return Result("new kubelet.sock to Register", median, "ms", 50, _spread(taken, _MS))


async def allocate(kubelet: FakeKubelet, calls: int = 3000) -> list[Result]:
    """One container, one device, one call after the other; Python's client takes about half of the time."""
    (device,) = [device for device, _ in kubelet.client.lists[0]]
    taken = []
    for number in range(WARM_UP + calls):
        begin = time.perf_counter()
        await kubelet.allocate([device])
        if number >= WARM_UP:
            taken.append(time.perf_counter() - begin)
    percentiles = statistics.quantiles(taken, n=100)
    return [
        Result("Allocate p50", percentiles[49] * _US, "us", detail=f"{calls} calls"),
        Result("Allocate p99", percentiles[98] * _US, "us"),
    ]


async def health_to_message(root: Path, kubelet: FakeKubelet) -> Result:
    node = root / "dev/nvmap"
    node.rename(root / "nvmap")
    begin = time.perf_counter()
    await kubelet.until_allocatable(0)
    taken = time.perf_counter() - begin
    (root / "nvmap").rename(node)
    await kubelet.until_allocatable()
    return Result("health change to message", taken, "s", 10)


def memory(plugin: Plugin) -> list[Result]:
    lines = Path(f"/proc/{plugin.process.pid}/smaps_rollup").read_text().splitlines()
    kib = {line.split()[0].rstrip(":"): int(line.split()[1]) for line in lines[1:]}
    return [
        Result("RSS", kib["Rss"] / 1024, "MiB", 36),
        Result("PSS", kib["Pss"] / 1024, "MiB"),
        Result("private", plugin.private_kib() / 1024, "MiB"),
    ]


async def idle(plugin: Plugin, seconds: float) -> list[Result]:
    """CPU time and wake-ups while nothing happens, per minute."""
    clock = cpu_clock(plugin)
    before, switches_before = time.clock_gettime(clock), voluntary_switches(plugin)
    await asyncio.sleep(seconds)
    used, switches = time.clock_gettime(clock) - before, voluntary_switches(plugin)
    woken = sum(count - switches_before.get(thread, 0) for thread, count in switches.items())
    return [
        Result("idle CPU", used * 60 / seconds * _MS, "ms/min", 60, f"over {seconds:g} s"),
        Result(
            "idle context switches",
            woken * 60 / seconds,
            "1/min",
            detail="voluntary; an idle gRPC server alone has 430",
        ),
    ]


def cpu_clock(plugin: Plugin) -> int:
    """The process' CPU clock, as clock_getcpuclockid(3) makes it: threads that have ended count, too."""
    return (~plugin.process.pid << 3) | 2


def voluntary_switches(plugin: Plugin) -> dict[str, int]:
    """Count how often each thread has gone to sleep (proc_pid_status(5), voluntary_ctxt_switches)."""
    found = {}
    for thread in Path(f"/proc/{plugin.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            lines = thread.joinpath("status").read_text().splitlines()
            found[thread.name] = int(next(line for line in lines if line.startswith("voluntary")).split()[1])
    return found


def table(results: Sequence[Result]) -> str:
    """Give the results, one a line, and whether each aim was reached."""
    lines = [f"{'':<30}{'value':>9} {'unit':<7}{'aim':>6}"]
    for result in results:
        verdict = "" if result.aim is None else ("reached" if result.value <= result.aim else "MISSED")
        aim = "" if result.aim is None else f"{result.aim:g}"
        figures = f"{result.what:<30}{result.value:>9.1f} {result.unit:<7}{aim:>6}"
        lines.append(f"{figures} {verdict:<8} {result.detail}".rstrip())
    return "\n".join(lines)


def _spread(taken: Sequence[float], scale: float) -> str:
    return f"{min(taken) * scale:.1f} to {max(taken) * scale:.1f}, {len(taken)} times"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--plugin-command", default=DEFAULT_COMMAND, help="see tests/conformance/conftest.py")
    parser.add_argument(
        "--against",
        metavar="COMMAND",
        help="the command of another plugin, such as an older release: only starts, of both in turns",
    )
    parser.add_argument("--rounds", type=int, default=10, help="how often a start is repeated")
    parser.add_argument("--idle-seconds", type=float, default=60)

    options = parser.parse_args()
    load = os.getloadavg()[0]
    sys.stdout.write(f"simulated {BOARD}, simulated kubelet, load {load:.1f} on {os.cpu_count()} CPUs\n")

    if options.against:
        compared = compare(options.plugin_command, options.against, options.rounds)
        sys.stdout.write(asyncio.run(compared) + "\n")
        return 0
    results = asyncio.run(measure(options.plugin_command, options.rounds, options.idle_seconds))
    sys.stdout.write(table(results) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
