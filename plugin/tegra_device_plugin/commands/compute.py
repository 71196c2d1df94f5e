# SPDX-License-Identifier: Apache-2.0
"""`compute`: run a CUDA kernel, check its result, and list the device nodes that are seen."""

from __future__ import annotations

import argparse
from pathlib import Path

from tegra_device_plugin.commands.common import EXIT_OK, say, until_signal
from tegra_device_plugin.cuda.kernel import compute


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--hold", action="store_true", help="then wait for SIGTERM or SIGINT")


def main(options: argparse.Namespace) -> int:
    """Say what was computed. Raises CudaError."""
    with until_signal(options.hold):
        for path in sorted(path for top in Path("/dev").glob("nv*") for path in (top, *top.rglob("*"))):
            if path.is_char_device():
                say(str(path))
        done = compute()
        say(f"computed {done.count} numbers on {done.device} in {done.seconds * 1000:.1f} ms, all are right")
    return EXIT_OK
