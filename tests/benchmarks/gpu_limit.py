# SPDX-License-Identifier: Apache-2.0
"""Measure what the memory limit costs: an allocation with its end, and the start of a program.

On the SIMULATED driver, which does next to nothing. A real cudaMalloc takes tens of microseconds and more, so
the difference counts, not the ratio. The ways alternate; the medians are printed.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from images.arm64 import compiler, gpu_limit
from tests.gpu_limit.rig import Rig
from tests.lab.workloads import libcuda
from tools.process import run

ROUNDS = 7
STARTS = 200


def main() -> int:
    """Print the costs of a call, and of a start."""
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
