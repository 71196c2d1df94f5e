# SPDX-License-Identifier: Apache-2.0
"""Measure cuStreamSynchronize under a memory limit by the number of allocations, on a SIMULATED driver."""

from __future__ import annotations

import sys

from images.arm64 import gpu_limit
from tests.gpu_limit.rig import Rig
from tests.lab.workloads import libcuda

RELEASE = "12.6"
COUNTS = (0, 1_000, 100_000)
# A synchronization reads pools only if there is one. The best of several rounds, because other programs run.
CODE = f"""
import time
assert make("cuMemAllocAsync", c_size_t(MIB), None)
def measure(what):
    rounds = []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(200): driver.cuStreamSynchronize(None)
        rounds.append((time.perf_counter() - begin) / 200)
    print(what, min(rounds) * 1e6, flush=True)
pointers = []
for count in {COUNTS}:
    while len(pointers) < count:
        pointers.append(c_uint64())
        assert driver.cuMemAlloc_v2(byref(pointers[-1]), c_size_t(1)) == 0
    measure(count)
while pointers: driver.cuMemFree_v2(pointers.pop())
measure("freed")
"""


def main() -> int:
    """Print microseconds for each number of allocations, and the ratio to none."""
    ran = Rig(libcuda(RELEASE), library=gpu_limit.build("amd64")).run(CODE)
    found = {what: float(value) for what, value in (line.split() for line in ran.stdout.splitlines())}
    for what, value in found.items():
        sys.stdout.write(f"{what:>7} allocations  {value:7.1f} us  {value / found['0']:6.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
