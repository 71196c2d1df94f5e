# SPDX-License-Identifier: Apache-2.0
"""`detect`: say which board and GPU this is, and how that is known."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, add_host_root, say
from tegra_device_plugin.telemetry import jtop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_host_root(parser)
    parser.add_argument("--output", choices=("text", "json"), default="text")


def main(options: argparse.Namespace) -> int:
    """Print the facts; the exit code says whether there is a Tegra GPU."""
    detection = detect(options.host_root)
    facts = detection.as_dict()
    if telemetry := jtop.read_once(options.host_root):
        facts["module"] = facts["module"] or telemetry.module
        facts["jetpack"] = facts["jetpack"] or telemetry.jetpack
        detail = ", ".join(filter(None, (telemetry.module, telemetry.part_number, telemetry.power_mode)))
        facts["evidence"].append({"source": "jtop", "found": True, "detail": detail})
    if options.output == "json":
        say(json.dumps(facts, indent=2))
    else:
        say("\n".join(_as_text(facts)))
    return EXIT_FAILED if detection.gpu.state == "absent" else EXIT_OK


def _as_text(facts: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in facts.items():
        if key == "evidence":
            lines.append("looked at:")
            lines += [f"  {'+' if one['found'] else '-'} {one['source']}: {one['detail']}" for one in value]
        elif isinstance(value, dict):
            lines += [f"{indent}{key}:", *_as_text(value, indent + "  ")]
        else:
            shown = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            lines.append(f"{indent}{key + ':':<20} {'unknown' if shown is None else shown}")
    return lines
