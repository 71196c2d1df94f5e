# SPDX-License-Identifier: Apache-2.0
"""`agent`: divide the GPU's time, and watch its memory."""

from __future__ import annotations

import argparse
import asyncio

from tegra_device_plugin.agent.daemon import Agent, Choice
from tegra_device_plugin.agent.nvgpu import Linux
from tegra_device_plugin.commands.common import EXIT_OK, configuration
from tegra_device_plugin.kubelet import pod_resources
from tegra_device_plugin.signals import Signals


def main(options: argparse.Namespace, signals: Signals) -> int:
    """Work until a signal ends it."""
    choice = Choice(options.mode, options.qos_policy, options.pod_resources or pod_resources.SOCKET)
    asyncio.run(Agent(configuration(options), choice, signals, Linux()).run())
    return EXIT_OK
