# SPDX-License-Identifier: Apache-2.0
"""`koordinator-device`: print Koordinator's Device of this node."""

from __future__ import annotations

import argparse
import json

from tegra_device_plugin.board import health
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, add_config, add_host_root, say
from tegra_device_plugin.config.settings import ConfigError, read_file
from tegra_device_plugin.sharing import koordinator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("node", metavar="NODE", help="the node's name")
    add_host_root(parser)
    add_config(parser, "settings of `run`")


def main(options: argparse.Namespace) -> int:
    """Print it; the exit code says whether there is a Tegra GPU. Raises ConfigError without its preset."""
    units = read_file(options.config).units
    if units is None or units.preset != "koordinator":
        raise ConfigError(
            "--config: a configuration with `sharing.units` and `preset: koordinator` is needed"
        )
    found = detect(options.host_root)
    if found.gpu.state == "absent":
        return EXIT_FAILED
    verdict = health.judge(health.sample(options.host_root, found.gpu))
    infos = koordinator.device_infos(found, units, verdict)
    say(json.dumps(koordinator.device(options.node, infos), indent=2))
    return EXIT_OK
