# SPDX-License-Identifier: Apache-2.0
"""`before-kubelet`: once per boot, before the kubelet starts."""

from __future__ import annotations

import argparse
import os

from tegra_device_plugin.board.health import HEALTHY
from tegra_device_plugin.commands.common import (
    EXIT_OK,
    Command,
    add_config,
    add_options,
    config_file,
    flags,
    print_line,
)
from tegra_device_plugin.config.options import PLUGIN_OPTIONS
from tegra_device_plugin.config.settings import load_plugin
from tegra_device_plugin.kubelet import boot
from tegra_device_plugin.sharing.resources import make_resources

# nvpmodel and Docker have started by then. On a Nano with a slow card Python and gRPC take seconds.
WAIT_SECONDS = 30.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser, "settings of `run`; CONFIG_FILE")
    add_options(parser, PLUGIN_OPTIONS)
    parser.add_argument(
        "--wait",
        type=float,
        default=WAIT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait for an instance with a healthy GPU (default: {WAIT_SECONDS:g})",
    )


def _main(options: argparse.Namespace) -> int:
    settings = load_plugin(config_file(options), os.environ, flags(options, PLUGIN_OPTIONS))
    resources = list(make_resources(settings, (), HEALTHY))
    if settings.devices:
        from tegra_device_plugin.sharing import device_nodes  # noqa: PLC0415 - most boards have none

        resources += [device_nodes.make_resource(one, ()) for one in settings.devices]
    print_line(boot.prepare(settings.device_plugin_dir, resources, options.wait))
    return EXIT_OK


COMMANDS = {
    "before-kubelet": Command(
        _arguments,
        _main,
        "Only for a boot: where containers with a GPU run, the kubelet would allocate their devices again.",
    )
}
