# SPDX-License-Identifier: Apache-2.0
"""`config check`: print the errors of a configuration file, or its meaning."""

from __future__ import annotations

import argparse
from pathlib import Path

from tegra_device_plugin.commands.common import EXIT_OK, Command, counted, say
from tegra_device_plugin.config import dra_modes, units
from tegra_device_plugin.config.settings import read_file


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check",), metavar="check")
    parser.add_argument("file", type=Path, metavar="FILE")


def _main(options: argparse.Namespace) -> int:
    """Say what it means. Raises ConfigError."""
    content = read_file(options.file)
    sharing = content.sharing
    if content.dra:
        say(f"{options.file}: good, for the command `dra`: {', '.join(content.dra.devices)}")
        say("\n".join(dra_modes.describe(content.dra)))
    else:
        say(f"{options.file}: good: {counted(content.counts)}")
    if content.units:
        say("\n".join(units.describe(content.units)))
    if sharing.replicas > 1:
        limit = "one per container" if sharing.fail_requests_greater_than_one else "any number per container"
        say(f"the GPU is shared by time-slicing, {limit}; memory is not divided")
    for note in content.notes:
        say(note)
    return EXIT_OK


COMMANDS = {"config": Command(_add_arguments, _main)}
