# SPDX-License-Identifier: Apache-2.0
"""`config check`: say what is wrong with a configuration file, or what it means."""

from __future__ import annotations

import argparse

from tegra_device_plugin.commands.common import EXIT_OK, counted, say
from tegra_device_plugin.config import dra, units
from tegra_device_plugin.config import settings as config


def main(options: argparse.Namespace) -> int:
    """Say what it means. Raises ConfigError."""
    settings, notes = config.load(options.file, {}, {})
    sharing = settings.sharing
    if settings.dra:
        say(f"{options.file}: good, for the command `dra`: {', '.join(settings.dra.devices)}")
        say("\n".join(dra.describe(settings.dra)))
    else:
        say(f"{options.file}: good: {counted(settings.counts)}")
    if settings.units:
        say("\n".join(units.describe(settings.units)))
    if sharing.replicas > 1:
        limit = "one per container" if sharing.fail_requests_greater_than_one else "any number per container"
        say(f"the GPU is shared by time-slicing, {limit}; memory is not divided")
    for note in notes:
        say(note)
    return EXIT_OK
