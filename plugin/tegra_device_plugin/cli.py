# SPDX-License-Identifier: Apache-2.0
"""The command line: finds the command, and turns its errors into exit codes.

A module of `commands` is imported only for its commands: `detect` does not need gRPC, and `run` registers
earlier.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from tegra_device_plugin.commands.common import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    Command,
    print_error,
    print_line,
)
from tegra_device_plugin.config.options import ConfigError

_COMMANDS = {
    "run": ("daemons", "serve the GPU to the kubelet"),
    "dra": ("daemons", "serve the GPU by Dynamic Resource Allocation, instead of `run`"),
    "throttle-taint": ("daemons", "keep a taint on the node while its board is throttled by heat or current"),
    "before-kubelet": ("boot", "at a boot: wait for `run --stand-by`, and let the kubelet refuse no pod"),
    "agent": ("daemons", "divide the GPU's time among pods by weights, and watch each pod's GPU memory"),
    "detect": ("inspection", "print the board and its GPU, with the evidence"),
    "devices": (
        "devices",
        "print the cameras and other devices of the configuration, as they are now",
    ),
    "labels": ("inspection", "print the node labels that describe the GPU"),
    "capture": (
        "snapshots",
        "write a snapshot of the board, without secrets and identities, for others to read",
    ),
    "allocations": ("allocations", "print each container's share of this node's GPU, and the free rest"),
    "allocate": ("cuda_programs", "allocate GPU memory as a CUDA program, to find this container's limit"),
    "compute": ("cuda_programs", "run a CUDA kernel, check its result, and list the visible device nodes"),
    "device-query": ("cuda_programs", "print the GPU's main properties as NVIDIA's sample deviceQuery does"),
    "koordinator-device": (
        "inspection",
        "print Koordinator's Device of this node, with the preset koordinator",
    ),
    "check-manifest": (
        "manifests",
        "say which lines of another system's manifest run here, and what to write instead",
    ),
    "config": ("inspection", "check a configuration file: print its errors, or its meaning"),
}
"""The module of `commands` and the description of each command."""
_WITH_API_SERVER = ("dra", "throttle-taint")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 failed or no Tegra GPU, 2 bad usage or settings."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in _COMMANDS:
        _parser().parse_args(words)  # prints help, the version or an error, and exits
    command = words[0]
    if command not in _WITH_API_SERVER:
        _without_tls()
    chosen = find_command(command)
    parser = argparse.ArgumentParser(
        prog=f"tegra-device-plugin {command}", description=_COMMANDS[command][1], epilog=chosen.epilog
    )
    chosen.add_arguments(parser)
    options = parser.parse_args(words[1:])
    try:
        return chosen.main(options)
    except ConfigError as error:
        for problem in error.problems:
            print_error(problem)
        return EXIT_USAGE
    except OSError as error:
        print_error(str(error))
        return EXIT_FAILED
    except ExceptionGroup as failures:
        expected, unexpected = failures.split(OSError)
        if unexpected or not expected:
            raise
        from tegra_device_plugin.system.log import leaves  # noqa: PLC0415 - only now

        for failure in leaves(expected):
            print_error(str(failure))
        return EXIT_FAILED


def find_command(name: str) -> Command:
    found: Command = import_module(f"tegra_device_plugin.commands.{_COMMANDS[name][0]}").COMMANDS[name]
    return found


def _without_tls() -> None:
    """Keep asyncio from loading OpenSSL, which only the API server's client needs.

    It is 1.5 MB of 12 MB private memory (`python -m tests.benchmarks`). In 0.1.0, `run` did not have it.
    """
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None: an import of it fails


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, _COMMANDS))
    parser = argparse.ArgumentParser(
        prog="tegra-device-plugin",
        description="Kubernetes device plugin for the integrated GPU of NVIDIA Jetson boards",
        epilog="commands:\n"
        + "\n".join(f"  {name:<{width}}  {about}" for name, (_, about) in _COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print version and git revision, and end")
    parser.add_argument(
        "command",
        choices=_COMMANDS,
        metavar="COMMAND",
        help="a command of the list below; COMMAND --help prints its options",
    )
    return parser


class _Version(argparse.Action):
    """Reads the version only for `--version`, unlike argparse's own action."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tegra_device_plugin import version  # noqa: PLC0415 - see the class

        print_line(f"{parser.prog} {version.VERSION} (revision {version.git_revision()})")
        parser.exit(EXIT_OK)
