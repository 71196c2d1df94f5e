# SPDX-License-Identifier: Apache-2.0
"""`dra`: serve the GPU by Dynamic Resource Allocation."""

from __future__ import annotations

import argparse
import asyncio

from tegra_device_plugin.commands.common import EXIT_OK, configuration
from tegra_device_plugin.config.settings import DRA_OPTIONS, OPTIONS
from tegra_device_plugin.dra.daemon import Driver
from tegra_device_plugin.signals import Signals


def main(options: argparse.Namespace, signals: Signals) -> int:
    """Serve until a signal ends it."""
    asyncio.run(Driver(configuration(options, (*OPTIONS, *DRA_OPTIONS)), signals).run())
    return EXIT_OK
