# SPDX-License-Identifier: Apache-2.0
"""`devices`: which cameras, serial ports and other devices of this board the configuration names."""

from __future__ import annotations

import argparse

from tegra_device_plugin.commands.common import (
    EXIT_FAILED,
    EXIT_OK,
    Command,
    add_config,
    add_host_root,
    config_file,
    print_error,
    print_line,
)
from tegra_device_plugin.config.file import read_file
from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.sharing import device_nodes
from tegra_device_plugin.system.hosttree import HostTree


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "settings of `run`, with `devices`; CONFIG_FILE")
    add_host_root(parser)


def _main(options: argparse.Namespace) -> int:
    """Print a line for each device; the exit code shows whether each of them can be allocated."""
    resources = read_file(config_file(options)).devices
    if not resources:
        raise ConfigError("--config: a configuration with `devices` is needed")
    found = device_nodes.find(HostTree(options.host_root), resources)
    healthy = True
    for name, devices in found.devices.items():
        if not devices:
            print_line(f"{name}: no device on this board")
        for device in devices:
            shares = f", for {device.containers} containers at a time" if device.containers > 1 else ""
            print_line(f"{name}: {device.id}: {device.health.reason}{device_nodes.describe(device)}{shares}")
            healthy &= device.health.healthy
    for problem in found.problems:
        print_error(problem)
    return EXIT_OK if healthy and not found.problems else EXIT_FAILED


COMMANDS = {"devices": Command(_arguments, _main)}
