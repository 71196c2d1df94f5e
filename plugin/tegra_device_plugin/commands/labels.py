# SPDX-License-Identifier: Apache-2.0
"""`labels`: print the node labels that describe the GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from tegra_device_plugin.agent import nvgpu
from tegra_device_plugin.board import labels
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, add_config, add_host_root, say
from tegra_device_plugin.config.names import DEFAULT_RESOURCE
from tegra_device_plugin.config.settings import read_file
from tegra_device_plugin.system.atomicfile import replace_file
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.telemetry import jtop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_host_root(parser)
    add_config(parser, "settings of `run`, for the labels on sharing")
    parser.add_argument(
        "--qos-policy",
        choices=("best-effort", "burst-share"),
        help="that of `agent` here; burst-share gives a label that says if this board's driver can do it",
    )
    parser.add_argument(
        "--output",
        choices=("text", "json", "nfd"),
        default="text",
        help="nfd: for a file in NFD's features.d",
    )
    parser.add_argument(
        "--output-file", type=Path, metavar="FILE", help="write there in one step (default: print)"
    )


def main(options: argparse.Namespace) -> int:
    """Print or write the labels; the exit code says whether there are any."""
    content = read_file(options.config)
    detection = detect(options.host_root)
    telemetry = jtop.read_once(options.host_root)
    units = content.units
    found = labels.node_labels(
        detection,
        replicas=None if units else content.sharing.replicas,
        renamed=DEFAULT_RESOURCE not in units.resources if units else content.sharing.renamed,
        memory_unit=units.memory_unit if units else None,
        power_mode=telemetry.power_mode if telemetry else None,
        gpu_share=_gpu_share(options.host_root, detection.gpu.state)
        if options.qos_policy == "burst-share"
        else None,
    )
    text = labels.render(found, options.output)
    if options.output_file:
        replace_file(options.output_file, text)
    else:
        say(text.rstrip())
    return EXIT_OK if found else EXIT_FAILED


def _gpu_share(root: Path, state: str) -> str | None:
    """What becomes of weights on this board; not known before the GPU was switched on."""
    if nvgpu.find_node(HostTree(root)):
        return "weighted"
    return None if state == "unpowered" else "unsupported"
