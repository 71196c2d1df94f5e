# SPDX-License-Identifier: Apache-2.0
"""`run`: serve the GPU to the kubelet."""

from __future__ import annotations

import argparse
import asyncio

from tegra_device_plugin.commands.common import EXIT_OK, configuration
from tegra_device_plugin.daemon import Daemon
from tegra_device_plugin.signals import Signals


def main(options: argparse.Namespace, signals: Signals) -> int:
    """Serve until a signal ends it."""
    asyncio.run(Daemon(configuration(options), signals).run())
    return EXIT_OK
