# SPDX-License-Identifier: Apache-2.0
"""`allocations`: print each container's share of the GPU, and the free rest."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

from tegra_device_plugin.agent import memory, unused_page
from tegra_device_plugin.commands.common import (
    EXIT_OK,
    Command,
    add_config,
    add_pod_resources,
    config_file,
    print_error,
    print_line,
)
from tegra_device_plugin.config.file import read_file
from tegra_device_plugin.config.options import METRICS_ADDRESS_OPTION, ConfigError, option_values
from tegra_device_plugin.config.settings import GPU_LIMIT_DIR, load_gpu_limit_dir
from tegra_device_plugin.telemetry import shares


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pod_resources(parser)
    add_config(parser, "settings of `run`, for the shares; CONFIG_FILE")
    parser.add_argument(
        "--host-root",
        type=Path,
        metavar="DIR",
        help="also print the GPU memory of the containers' processes; where the host's files are",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text")


def _main(options: argparse.Namespace) -> int:
    try:
        content = read_file(config_file(options), options.host_root)
        units, limit_dir = content.units, load_gpu_limit_dir(content, os.environ)
    except ConfigError as error:  # allocations matter most after an error
        units, limit_dir = None, GPU_LIMIT_DIR
        for problem in error.problems:
            print_error(f"limits are not shown: {problem}")
    found, accounts = asyncio.run(shares.of_node(options.pod_resources, units, limit_dir))
    if options.host_root:
        try:
            found = shares.with_resident(found, memory.by_container(options.host_root))
        except memory.UnknownUseError as error:
            print_error(f"memory of processes is not shown: {error}")
    found = _with_unused(found)
    if options.output == "json":
        print_line(json.dumps(shares.as_dict(found, accounts), indent=2))
    else:
        print_line("\n".join(shares.as_lines(found, accounts)))
    return EXIT_OK


def _with_unused(found: list[shares.Row]) -> list[shares.Row]:
    """Add the answer of the node agent, in whose container this variable is."""
    try:
        address = option_values((METRICS_ADDRESS_OPTION,), {}, os.environ, {}).get("metrics_address")
        return shares.with_unused(found, unused_page.read(address)) if address else found
    except (ConfigError, OSError) as error:
        print_error(f"unused GPUs are not shown: {METRICS_ADDRESS_OPTION.variable}: {error}")
        return found


COMMANDS = {"allocations": Command(_add_arguments, _main)}
