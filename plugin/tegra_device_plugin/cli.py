# SPDX-License-Identifier: Apache-2.0
"""The command line: `run`, `detect`.

Each command imports what it needs: `detect` has no use for gRPC, and `run` registers the sooner.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed or no Tegra GPU, 2 bad usage."""
    options = _parser().parse_args(arguments)
    code: int = options.command(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tegra-device-plugin", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    detect = commands.add_parser("detect", help="say which board and GPU this is, and how that is known")
    detect.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="where the host's /sys, /dev and /etc are",
    )
    detect.add_argument("--output", choices=("text", "json"), default="text")
    detect.set_defaults(command=_detect)

    run = commands.add_parser("run", help="serve the GPU to the kubelet")
    run.add_argument("--host-root", type=Path, default=Path("/"), metavar="DIR")
    run.add_argument(
        "--device-plugin-dir", type=Path, default=Path("/var/lib/kubelet/device-plugins"), metavar="DIR"
    )
    run.set_defaults(command=_run)
    return parser


def _detect(options: argparse.Namespace) -> int:
    from tegra_device_plugin.detection import detect  # noqa: PLC0415 - see above

    detection = detect(options.host_root)
    if options.output == "json":
        _say(json.dumps(detection.as_dict(), indent=2))
    else:
        _say(_as_text(detection.as_dict()))
    return 1 if detection.gpu.state == "absent" else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _as_text(facts: dict[str, Any], indent: str = "") -> str:
    lines = []
    for key, value in facts.items():
        if key == "evidence":
            lines.append("looked at:")
            lines += [f"  {'+' if one['found'] else '-'} {one['source']}: {one['detail']}" for one in value]
        elif isinstance(value, dict):
            lines.append(f"{indent}{key}:")
            lines.append(_as_text(value, indent + "  "))
        else:
            shown = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            lines.append(f"{indent}{key + ':':<20} {'unknown' if shown is None else shown}")
    return "\n".join(lines)


def _run(options: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415 - see above
    import logging  # noqa: PLC0415 - see above

    from tegra_device_plugin.config import Settings  # noqa: PLC0415 - see above
    from tegra_device_plugin.daemon import run  # noqa: PLC0415 - see above

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    asyncio.run(run(Settings(host_root=options.host_root, device_plugin_dir=options.device_plugin_dir)))
    return 0
