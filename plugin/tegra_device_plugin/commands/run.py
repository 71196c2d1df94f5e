# SPDX-License-Identifier: Apache-2.0
"""`run`: serve the GPU to the kubelet."""

from __future__ import annotations

import argparse
import asyncio

from tegra_device_plugin.commands.common import EXIT_OK, add_config, add_options, configuration
from tegra_device_plugin.config.settings import PLUGIN_OPTIONS, load_plugin
from tegra_device_plugin.daemon import Daemon
from tegra_device_plugin.signals import Signals

EPILOG = (
    "Every option is also an environment variable and a key of the file's flags.plugin; "
    "the flag wins over the variable, and the variable over the file."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_config(parser, "settings in NVIDIA's `version: v1` format; CONFIG_FILE")
    add_options(parser, PLUGIN_OPTIONS)


def main(options: argparse.Namespace, signals: Signals) -> int:
    """Serve until a signal ends the process."""
    asyncio.run(Daemon(configuration(options, PLUGIN_OPTIONS, load_plugin), signals).run())
    return EXIT_OK
