# SPDX-License-Identifier: Apache-2.0
"""`detect`, `labels`, `koordinator-device` and `config check`: print facts about board and configuration."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tegra_device_plugin.agent import nvgpu
from tegra_device_plugin.board import health, labels
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.identity import Evidence
from tegra_device_plugin.commands.common import (
    EXIT_FAILED,
    EXIT_OK,
    Command,
    add_board,
    add_config,
    add_host_root,
    board_root,
    counted,
    print_line,
)
from tegra_device_plugin.config import dra_modes
from tegra_device_plugin.config.file import read_file
from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.config.settings import WEIGHTED
from tegra_device_plugin.config.units import describe
from tegra_device_plugin.sharing import koordinator
from tegra_device_plugin.system.atomicfile import replace_file
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.system.kubernetes import DEFAULT_RESOURCE
from tegra_device_plugin.telemetry import jtop, jtop_facts

if TYPE_CHECKING:
    from tegra_device_plugin.config.devices import DeviceResource

logger = logging.getLogger(__name__)


def _detect_arguments(parser: argparse.ArgumentParser) -> None:
    add_board(parser)
    parser.add_argument("--output", choices=("text", "json"), default="text")


def _detect(options: argparse.Namespace) -> int:
    """Print the facts; the exit code shows whether there is a Tegra GPU."""
    telemetry, without = None, ""
    with board_root(options) as root:
        detection = detect(root)
        try:
            telemetry = jtop.read_once(root)
        except jtop.JtopError as error:
            without = str(error)
    facts = detection.as_dict()
    evidence = facts.pop("evidence")  # the last one
    if telemetry is None:
        evidence.append(Evidence(jtop_facts.SOURCE, False, without)._asdict())
    else:
        compared = jtop_facts.compare(detection, telemetry)
        facts["jtop"] = jtop_facts.as_dict(compared) | {"power_mode": telemetry.power_mode}
        evidence += [fact.evidence._asdict() for fact in compared]
    facts["evidence"] = evidence
    if options.output == "json":
        print_line(json.dumps(facts, indent=2))
    else:
        print_line("\n".join(_as_text(facts)))
    return EXIT_FAILED if detection.gpu.state == "absent" else EXIT_OK


def _as_text(facts: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in facts.items():
        if key == "evidence":
            lines.append("searched:")
            lines += [f"  {'+' if one['found'] else '-'} {one['source']}: {one['detail']}" for one in value]
        elif isinstance(value, dict):
            lines += [f"{indent}{key}:", *_as_text(value, indent + "  ")]
        else:
            shown = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            lines.append(f"{indent}{key + ':':<20} {'unknown' if shown is None else shown}")
    return lines


def _labels_arguments(parser: argparse.ArgumentParser) -> None:
    add_board(parser)
    add_config(parser, "settings of `run`, for the labels on sharing")
    parser.add_argument(
        "--qos-policy",
        choices=("best-effort", *WEIGHTED),
        help="that of `agent` here; burst-share and per-pod give a label that says if this board's driver "
        "can do it",
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


def _labels(options: argparse.Namespace) -> int:
    """Print or write the labels; the exit code shows whether there are any."""
    weighted = options.qos_policy in WEIGHTED
    with board_root(options) as root:
        content = read_file(options.config, root)
        detection = detect(root)
        try:
            telemetry = jtop.read_once(root)
        except jtop.JtopError as error:
            logger.info("no telemetry from jtop: %s", error)
            telemetry = jtop.Telemetry()
        gpu_share = _gpu_share(root, detection.gpu.state) if weighted else None
        devices = _devices(root, content.devices) if content.devices else None
    units = content.units
    found = labels.node_labels(
        detection,
        replicas=None if units else content.sharing.replicas,
        renamed=DEFAULT_RESOURCE not in units.resources if units else content.sharing.renamed,
        memory_unit=units.memory_unit if units else None,
        power_mode=telemetry.power_mode,
        gpu_share=gpu_share,
        devices=devices,
        jtop=jtop_facts.by_label(jtop_facts.compare(detection, telemetry)),
    )
    text = labels.render(found, options.output)
    if options.output_file:
        replace_file(options.output_file, text)
    else:
        print_line(text.rstrip())
    return EXIT_OK if found else EXIT_FAILED


def _devices(root: Path, configured: tuple[DeviceResource, ...]) -> str:
    """Give the resources that the board has, for a label. Raises ConfigError for refused ones."""
    from tegra_device_plugin.sharing import device_nodes  # noqa: PLC0415 - most boards have none

    found = device_nodes.find(HostTree(root), configured)
    if found.refused:
        raise ConfigError(*found.refused)
    return "_".join(sorted(name.partition("/")[2] for name in found.present))


def _gpu_share(root: Path, state: str) -> str | None:
    """Give the effect of weights on this board; None before the GPU was switched on."""
    if nvgpu.find_node(HostTree(root)):
        return "weighted"
    return None if state == "unpowered" else "unsupported"


def _koordinator_device_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="the node's name")
    add_host_root(parser)
    add_config(parser, "settings of `run`")


def _koordinator_device(options: argparse.Namespace) -> int:
    """Print Koordinator's Device. Raises ConfigError without its preset."""
    units = read_file(options.config, options.host_root).units
    if units is None or units.preset != "koordinator":
        raise ConfigError(
            "--config: a configuration with `sharing.units` and `preset: koordinator` is needed"
        )
    found = detect(options.host_root)
    if found.gpu.state == "absent":
        return EXIT_FAILED
    gpu_health = health.assess(health.sample(options.host_root, found.gpu))
    infos = koordinator.device_infos(found, units, gpu_health)
    print_line(json.dumps(koordinator.device(options.node, infos), indent=2))
    return EXIT_OK


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check",), metavar="check")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--host-root",
        type=Path,
        metavar="DIR",
        help="where the host's files are: percentages are of this board's memory",
    )


def _config_check(options: argparse.Namespace) -> int:
    """Print the meaning of the file. Raises ConfigError."""
    content = read_file(options.file, options.host_root)
    sharing = content.sharing
    if content.dra:
        print_line(f"{options.file}: good, for the command `dra`: {', '.join(content.dra.devices)}")
        print_line("\n".join(dra_modes.describe(content.dra)))
    else:
        print_line(f"{options.file}: good: {counted(content.counts)}")
    if content.units:
        print_line("\n".join(describe(content.units)))
    if content.devices:
        from tegra_device_plugin.config import devices  # noqa: PLC0415 - most boards have none

        print_line("\n".join(map(devices.describe, content.devices)))
    if sharing.replicas > 1:
        limit = "one per container" if sharing.fail_requests_greater_than_one else "any number per container"
        print_line(f"the GPU is shared by time-slicing, {limit}; memory is not divided")
    for note in content.notes:
        print_line(note)
    return EXIT_OK


COMMANDS = {
    "detect": Command(_detect_arguments, _detect),
    "labels": Command(_labels_arguments, _labels),
    "koordinator-device": Command(_koordinator_device_arguments, _koordinator_device),
    "config": Command(_config_arguments, _config_check),
}
