# SPDX-License-Identifier: Apache-2.0
"""`holders`: say what each container of this node has of the GPU, and what is free."""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from tegra_device_plugin.agent import memory
from tegra_device_plugin.commands.common import EXIT_OK, complain, config_file, say
from tegra_device_plugin.config import settings as config
from tegra_device_plugin.telemetry import view


def main(options: argparse.Namespace) -> int:
    """Print a row for each container, and the node's sums."""
    try:
        settings, _ = config.load(config_file(options), os.environ, {})
    except config.ConfigError as error:  # who holds what is asked for most when something is wrong
        settings = config.Settings()
        for problem in error.problems:
            complain(f"limits are not shown: {problem}")
    found, accounts = asyncio.run(view.of_node(options.pod_resources, settings.units, settings.gpu_limit_dir))
    if options.host_root:
        try:
            found = view.with_resident(found, memory.by_container(options.host_root))
        except memory.UnknownUseError as error:
            complain(f"what processes hold is not shown: {error}")
    if options.output == "json":
        say(json.dumps(view.as_dict(found, accounts), indent=2))
    else:
        say("\n".join(view.as_lines(found, accounts)))
    return EXIT_OK
