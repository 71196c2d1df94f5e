# SPDX-License-Identifier: Apache-2.0
"""Measure the plugin on an EMULATED arm64 board: `python -m tests.benchmarks.emulated` prints the table.

The benchmark runs there in a container of the plugin's arm64 image, whose interpreter and libraries it uses.
A fresh board is brought up for it and taken away again. The figures are those of QEMU's processor.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tarfile
import tempfile
from pathlib import Path

from images.arm64 import build
from tests.lab import lab, ssh
from tests.lab.vm.disk import ARCH
from tests.lab.vm.machine import Machine
from tools.cache import CHECKOUT
from tools.process import ToolError, say

LAB = "benchmark-arm64"
TYPE = "orinnano-jp6"
# What the benchmark is made of; the plugin and its libraries are in the image.
SOURCES = ("tests/benchmarks", "tests/boards", "tests/conformance")
THERE = "/var/tmp/benchmark"
IN_CONTAINER = (
    "--rm",
    "--network=none",
    "--read-only",
    "--tmpfs=/tmp",
    f"--volume={THERE}:/benchmark:ro",
    "--env=PYTHONPATH=/opt/tegra-device-plugin:/benchmark",
    "--entrypoint=python3.11",
)
TIMEOUT_SECONDS = 1800


def measure(machine: Machine, rounds: int, idle_seconds: float) -> str:
    """Return the table of a run on an emulated board that is up."""
    with tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch, "benchmark.tar")
        with tarfile.open(packed, "w") as tar:
            for source in SOURCES:
                tar.add(CHECKOUT / source, source)
        machine.exec("mkdir", "--parents", THERE)
        ssh.copy(machine.lab, machine.address, packed, f"{THERE}.tar")
        machine.exec("tar", "-x", f"--file={THERE}.tar", f"--directory={THERE}")
        machine.load_image(build.build(ARCH, Path(scratch, "plugin.tar.gz")))
    settings = ("--emulated", f"--rounds={rounds}", f"--idle-seconds={idle_seconds:g}")
    command = ("docker", "run", *IN_CONTAINER, build.reference(), "-m", "tests.benchmarks", *settings)
    return machine.exec(*command, timeout=TIMEOUT_SECONDS)


def main() -> int:
    """Bring a board up, measure, print, take it away."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.emulated", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="how often a start is repeated")
    parser.add_argument("--idle-seconds", type=float, default=60)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        (machine,) = lab.up_graded(LAB, [TYPE], [lab.ARM64])
        assert isinstance(machine, Machine)
        table = measure(machine, options.rounds, options.idle_seconds)
    except ToolError as error:
        say(f"error: {error}")
        return 1
    finally:
        lab.down(LAB)
    sys.stdout.write(f"{table}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
