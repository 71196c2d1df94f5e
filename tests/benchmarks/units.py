# SPDX-License-Identifier: Apache-2.0
"""What a list of many ids costs: Allocate and memory with 10, 1,000 and 131,072 ids; print a table.

Everything is of one run and beside the exclusive GPU in the same run: these machines are noisy, and only the
ratios tell something.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.kubelet import api_pb2 as api

from tests import boards
from tests.benchmarks.__main__ import BOARD, WARM_UP
from tests.benchmarks.http2 import Connection
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.node import Node
from tests.conformance.plugin import DEFAULT_COMMAND, running

IDS = (10, 1000, 131_072)
MEMORY = "jetson-k3s.github.io/gpu-memory"
GPU = "nvidia.com/gpu"
MEMINFO = "MemTotal: 134217728 kB\n"  # the largest board's, in MiB as many as the most ids


@dataclass(frozen=True)
class Figures:
    """Of one plugin: the medians of Allocate and PreStartContainer of one id, and its own memory."""

    allocate_us: float
    start_us: float | None
    listed_ms: float
    private_mib: float


async def measure(root: Path, place: Path, ids: int | None, calls: int) -> Figures:
    """Start a plugin with so many ids of memory, or with the exclusive GPU, and ask it."""
    node = Node(place)
    node.share(f"units: {{memoryUnit: 1Mi, memoryTotal: {ids}Mi}}" if ids else "")
    resource, device = (MEMORY, "m0") if ids else (GPU, "igpu0")
    directory = place / "device-plugins"
    async with (
        FakeKubelet(directory, "1.20") as kubelet,
        running(DEFAULT_COMMAND, root, directory, *node.arguments) as plugin,
    ):
        await kubelet.until_allocatable(100 + ids if ids else 1)
        path = kubelet.clients[resource].path
        allocate = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=[device])]
        )
        allocate_us = median_us(path, "Allocate", allocate.SerializeToString(), calls)
        start_us = None
        if ids:
            start = api.PreStartContainerRequest(devices_ids=[device])
            start_us = median_us(path, "PreStartContainer", start.SerializeToString(), calls)
        listed_ms = await until_listed_again_ms(kubelet, ids)
        return Figures(allocate_us, start_us, listed_ms, plugin.private_kib() / 1024)


def median_us(path: Path, method: str, message: bytes, calls: int) -> float:
    """One call after the other, from a bare HTTP/2 client."""
    taken = []
    with Connection(path, f"/v1beta1.DevicePlugin/{method}") as connection:
        for number in range(WARM_UP + calls):
            begin = time.perf_counter()
            connection.call(message)
            if number >= WARM_UP:
                taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1e6


async def until_listed_again_ms(kubelet: FakeKubelet, ids: int | None) -> float:
    """From a kubelet's restart until it has every id again. The simulated kubelet's own reading is in it."""
    begin = time.perf_counter()
    await kubelet.restart()
    await kubelet.until_allocatable(100 + ids if ids else 1)
    return (time.perf_counter() - begin) * 1e3


async def table(calls: int) -> str:
    """Measure all, and give the figures and their ratios to the exclusive GPU's."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as parent:
        root = Path(parent, "host")
        boards.build(boards.load()[BOARD], root)
        root.joinpath("proc/meminfo").write_text(MEMINFO)
        places = {ids: Path(tempfile.mkdtemp(dir=parent)) for ids in (None, *IDS)}
        seen = {ids: await measure(root, place, ids, calls) for ids, place in places.items()}
    lines = [f"{'':<16}{'Allocate':>16}{'PreStart':>12}{'listed again':>16}{'private':>18}"]
    lines += [_line(f"{ids:,} ids" if ids else "exclusive", one, seen[None]) for ids, one in seen.items()]
    return "\n".join(lines)


def _line(name: str, seen: Figures, exclusive: Figures) -> str:
    slower, larger = seen.allocate_us / exclusive.allocate_us, seen.private_mib / exclusive.private_mib
    start = f"{seen.start_us:.0f} us" if seen.start_us else "-"
    return (
        f"{name:<16}{seen.allocate_us:>8.0f} us {slower:>4.2f}{start:>12}"
        f"{seen.listed_ms:>13.0f} ms{seen.private_mib:>9.1f} MiB {larger:>4.2f}"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.units", description=__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="how often each is called")
    options = parser.parse_args()
    sys.stdout.write(asyncio.run(table(options.calls)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
