# SPDX-License-Identifier: Apache-2.0
"""`allocate`: allocate GPU memory as a CUDA program."""

from __future__ import annotations

import argparse

from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, held, say
from tegra_device_plugin.cuda.driver import Cuda


def main(options: argparse.Namespace) -> int:
    """Say how much there was; the exit code says whether it was all."""
    with held(options.hold):
        cuda = Cuda()
        allocated = cuda.allocate(options.mib)
        free, total = cuda.info()
        end = "" if allocated == options.mib else ", then CUDA was out of memory"
        say(f"allocated {allocated} of {options.mib} MiB{end}; CUDA says that {free} of {total} MiB are free")
    return EXIT_OK if allocated == options.mib else EXIT_FAILED
