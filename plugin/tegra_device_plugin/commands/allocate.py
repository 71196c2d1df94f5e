# SPDX-License-Identifier: Apache-2.0
"""`allocate`: allocate GPU memory as a CUDA program."""

from __future__ import annotations

import argparse

from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, say, until_signal
from tegra_device_plugin.cuda.driver import Cuda


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("mib", type=_positive, metavar="MIB", help="how much, in MiB")
    parser.add_argument("--hold", action="store_true", help="keep it until SIGTERM or SIGINT")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a whole number above 0 is needed, not {text!r}")
    return int(text)


def main(options: argparse.Namespace) -> int:
    """Say how much there was; the exit code says whether it was all."""
    with until_signal(options.hold):
        cuda = Cuda()
        allocated = cuda.allocate(options.mib)
        free, total = cuda.info()
        end = "" if allocated == options.mib else ", then CUDA was out of memory"
        say(f"allocated {allocated} of {options.mib} MiB{end}; CUDA says that {free} of {total} MiB are free")
    return EXIT_OK if allocated == options.mib else EXIT_FAILED
