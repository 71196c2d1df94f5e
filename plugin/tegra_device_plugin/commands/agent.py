# SPDX-License-Identifier: Apache-2.0
"""`agent`: divide the GPU's time, and watch its memory."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from tegra_device_plugin.agent.daemon import Agent
from tegra_device_plugin.agent.nvgpu import Linux
from tegra_device_plugin.commands.common import (
    EXIT_OK,
    add_config,
    add_options,
    add_pod_resources,
    configuration,
)
from tegra_device_plugin.config.settings import COMMON_OPTIONS, MODES, QOS_POLICIES, load_agent
from tegra_device_plugin.signals import Signals

EPILOG = (
    "It reads the same file and environment as `run`. It needs the host's /proc, /sys with "
    "debugfs, /dev and /var/log/pods below the host root; for evict the capability KILL and the host's "
    "pids; for burst-share a privileged container. So it can read all pods' logs and all processes' command "
    "lines; with evict kill each process of the node; with burst-share do everything that root can do."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_config(parser, "settings of `run`, for the resources of shares; CONFIG_FILE")
    add_options(parser, COMMON_OPTIONS)
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="report",
        help="what happens to a pod whose GPU memory exceeds its share: a line in the log and a "
        "metric, or also the end of its GPU processes (default: report)",
    )
    parser.add_argument(
        "--qos-policy",
        choices=QOS_POLICIES,
        default="best-effort",
        help="best-effort: the driver's own time slices; burst-share: time slices by the pods' gpu-core; "
        "fixed-share is rejected, as the driver has no ceiling (default: best-effort)",
    )
    add_pod_resources(parser)


def main(options: argparse.Namespace, signals: Signals) -> int:
    """Work until a signal ends the process."""
    load = partial(
        load_agent,
        mode=options.mode,
        qos_policy=options.qos_policy,
        pod_resources=options.pod_resources,
    )
    asyncio.run(Agent(configuration(options, COMMON_OPTIONS, load), signals, Linux()).run())
    return EXIT_OK
