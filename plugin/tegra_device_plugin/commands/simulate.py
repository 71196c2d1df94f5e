# SPDX-License-Identifier: Apache-2.0
"""`simulate`: let a node advertise a GPU that it does not have."""

from __future__ import annotations

import argparse
import os

from tegra_device_plugin import simulation
from tegra_device_plugin.commands.common import EXIT_OK, config_file, counted, say
from tegra_device_plugin.config import settings as config


def main(options: argparse.Namespace) -> int:
    """Advertise it, or take it back."""
    if options.remove:
        names = simulation.withdraw(options.node)
        say(f"{options.node}: taken back: {', '.join(names) or 'nothing, as nothing is simulated there'}")
        return EXIT_OK
    settings, _ = config.load(config_file(options), os.environ, {})
    if settings.dra:
        raise config.ConfigError(
            ["sharing.dra: a ResourceSlice cannot be simulated, only extended resources"]
        )
    simulation.advertise(options.node, settings.counts)
    say(f"{options.node}: simulated: {counted(settings.counts)}; no container gets a GPU for them")
    return EXIT_OK
