# SPDX-License-Identifier: Apache-2.0
"""Measure what the memory limit costs: an allocation with its end, and the start of a program.

On the SIMULATED driver, which does next to nothing. A real cudaMalloc takes tens of microseconds and more, so
the difference counts, not the ratio. The ways alternate; the medians are printed.

Then the waits of two threads, and of two processes of one container, that share a core: see
tests/gpu_limit/threads.c. SCHED_FIFO needs root or CAP_SYS_NICE.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from images.arm64 import gpu_limit
from tests.gpu_limit.rig import Rig
from tests.gpu_limit.test_threads import SOURCE as THREADS
from tests.lab import compiler
from tests.lab.workloads import libcuda
from tools.process import run

ROUNDS = 7
STARTS = 200
NOT_PERMITTED = 77
"""The exit status of threads.c where SCHED_FIFO cannot be had."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu_limit", description=__doc__)
    parser.add_argument(
        "--against", metavar="LIBRARY", type=Path, help="measure the waits with this one, too"
    )
    parser.add_argument("--seconds", type=float, default=4, help="of each measured pair of threads")
    options = parser.parse_args()
    costs()
    libraries = {"this": gpu_limit.build("amd64")}
    if options.against:
        libraries["other"] = options.against.absolute()
    waits(libraries, options.seconds)
    return 0


def costs() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        program, ledger = Path(scratch, "program"), Path(scratch, "ledger")
        source = Path(__file__).with_suffix(".c")
        run([compiler.tool("gcc", "amd64"), "-O2", "-o", program, source, "-ldl"])
        bare = Rig(libcuda("12.6"))
        limited = bare.but(library=gpu_limit.build("amd64"))
        ways = {
            "without the library": bare,
            "preloaded, no limit": limited.but(limit=None),
            "limit of the process": limited,
            "limit of the container": limited.but(ledger=ledger),
        }
        pairs: dict[str, list[float]] = {way: [] for way in ways}
        starts: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, rig in ways.items():
                pairs[way].append(float(run([program], env=rig.environment).stdout) / 1e3)
                begin = time.perf_counter()
                for _ in range(STARTS // ROUNDS):
                    subprocess.run(["/bin/true"], env=rig.environment, check=True)
                starts[way].append((time.perf_counter() - begin) / (STARTS // ROUNDS) * 1e3)
    sys.stdout.write(f"{'':26}{'cuMemAlloc + cuMemFree':>24}{'start of a program':>24}\n")
    for way in ways:
        pair, start = statistics.median(pairs[way]), statistics.median(starts[way])
        sys.stdout.write(f"{way:26}{pair:>21.2f} us{start:>21.2f} ms\n")


def waits(libraries: dict[str, Path], seconds: float) -> None:
    """Print the calls of the thread with the higher priority, one a millisecond, and its longest call."""
    sys.stdout.write(f"\n{f'on one core, for {seconds:g} s':48}{'library':>8}")
    sys.stdout.write(f"{'calls':>8}{'longest':>13}{'other calls':>14}\n")
    with tempfile.TemporaryDirectory() as scratch:
        program, ledger = Path(scratch, "threads"), Path(scratch, "ledger")
        run([compiler.tool("gcc", "amd64"), "-O2", "-o", program, THREADS, "-ldl", "-lpthread"])
        limited = Rig(libcuda("12.6"))
        pairs = {
            "two threads, limit of the process": ("threads", limited),
            "two threads, limit of the container": ("threads", limited.but(ledger=ledger)),
            "two processes": ("processes", limited.but(ledger=ledger)),
        }
        for policy in ("other", "fifo"):
            for pair, (who, rig) in pairs.items():
                what = pair + (", one FIFO" if policy == "fifo" else "")
                for name, library in libraries.items():
                    command: list[str | Path] = [program, f"{seconds}", who, policy, "pi"]
                    ran = run(command, env=rig.but(library=library).environment, check=False)
                    if ran.returncode == NOT_PERMITTED:
                        sys.stdout.write("SCHED_FIFO cannot be had: run as root, or with CAP_SYS_NICE\n")
                        return
                    calls, longest, others = map(int, ran.stdout.split())
                    sys.stdout.write(f"{what:48}{name:>8}{calls:>8}{longest / 1e3:>10.1f} ms{others:>14}\n")


if __name__ == "__main__":
    sys.exit(main())
