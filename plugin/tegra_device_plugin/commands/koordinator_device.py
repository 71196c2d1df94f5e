# SPDX-License-Identifier: Apache-2.0
"""`koordinator-device`: print Koordinator's Device of this node."""

from __future__ import annotations

import argparse
import json

from tegra_device_plugin.board import health
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, say
from tegra_device_plugin.config import settings as config
from tegra_device_plugin.sharing import koordinator


def main(options: argparse.Namespace) -> int:
    """Print it; the exit code says whether there is a Tegra GPU. Raises ConfigError without its preset."""
    settings, _ = config.load(options.config, {}, {})
    if settings.units is None or settings.units.preset != "koordinator":
        raise config.ConfigError(
            ["this needs a configuration with `sharing.units` and `preset: koordinator`"]
        )
    found = detect(options.host_root)
    if found.gpu.state == "absent":
        return EXIT_FAILED
    verdict = health.judge(health.sample(options.host_root, found.gpu))
    infos = koordinator.device_infos(found, settings.units, verdict)
    say(json.dumps(koordinator.device(options.node, infos), indent=2))
    return EXIT_OK
