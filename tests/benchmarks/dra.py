# SPDX-License-Identifier: Apache-2.0
"""The DRA driver's start, from the process to the kubelet's registration, beside an earlier version's.

Both are started in turn, and each is warmed up once. The ratio tells something, the milliseconds little.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.conformance import fake_dra_kubelet
from tests.conformance.dra_node import DraNode
from tests.conformance.fake_api import FakeApi
from tests.conformance.fake_dra_kubelet import FakeDraKubelet


async def starts(other: Path, own: Path, rounds: int) -> str:
    """Start both drivers in turn on a simulated board; the first start of each is not counted."""
    fake_dra_kubelet._LOOK_SECONDS = 0.001
    taken: dict[Path, list[float]] = {other: [], own: []}
    for _ in range(rounds + 1):
        for plugin, milliseconds in taken.items():
            os.environ["PYTHONPATH"] = str(plugin)
            milliseconds.append(await start_to_registered() * 1e3)
    before, now = (sorted(one[1:]) for one in taken.values())
    lines = [f"{'start to registered':<22}{'min':>9}{'median':>12}"]
    lines += [
        f"{name:<22}{one[0]:>6.0f} ms{statistics.median(one):>9.0f} ms"
        for name, one in (("before", before), ("now", now))
    ]
    ratios = now[0] / before[0], statistics.median(now) / statistics.median(before)
    return "\n".join((*lines, f"{'ratio':<22}{ratios[0]:>9.2f}{ratios[1]:>12.2f}"))


async def start_to_registered() -> float:
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as place:
        async with FakeApi() as api, FakeDraKubelet(Path(place, "kubelet")) as kubelet:
            node = DraNode(Path(place), api, kubelet)
            begin = time.perf_counter()
            async with node.start():
                await kubelet.until_registered()
                return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.dra", description=__doc__)
    parser.add_argument("other", type=Path, help="a `plugin` directory of an earlier version")
    parser.add_argument("--rounds", type=int, default=10, help="starts of each driver (default: 10)")
    options = parser.parse_args()
    paths = options.other.resolve(), Path("plugin").resolve()
    sys.stdout.write(asyncio.run(starts(*paths, options.rounds)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
