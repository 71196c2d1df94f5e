# SPDX-License-Identifier: Apache-2.0
"""`dra`: serve the GPU by Dynamic Resource Allocation."""

from __future__ import annotations

import argparse
import asyncio

from tegra_device_plugin.commands.common import EXIT_OK, add_config, add_options, configuration
from tegra_device_plugin.config.settings import DRA_OPTIONS, load_dra
from tegra_device_plugin.dra.daemon import Driver
from tegra_device_plugin.signals import Signals

EPILOG = (
    "Every option is also an environment variable, and but for the last two a key of the file's "
    "flags.plugin; the flag wins over the variable, and the variable over the file. It needs Kubernetes "
    "1.34, and the API server: by the pod's service account, or a kubeconfig."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_config(parser, "settings in NVIDIA's `version: v1` format, with sharing.dra; CONFIG_FILE")
    add_options(parser, DRA_OPTIONS)


def main(options: argparse.Namespace, signals: Signals) -> int:
    """Serve until a signal ends the process."""
    asyncio.run(Driver(configuration(options, DRA_OPTIONS, load_dra), signals).run())
    return EXIT_OK
