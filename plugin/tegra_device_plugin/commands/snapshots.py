# SPDX-License-Identifier: Apache-2.0
"""`capture`: write a snapshot of the board."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tegra_device_plugin import version
from tegra_device_plugin.commands.common import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    Command,
    add_host_root,
    print_error,
)
from tegra_device_plugin.snapshot import snapshot_capture

_PRIVATE = 0o600


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_host_root(parser)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="a new file, for you alone (default: standard output)"
    )


def _capture(options: argparse.Namespace) -> int:
    """Write the archive, and on standard error what could not be read."""
    if options.output is None and sys.stdout.isatty():
        print_error("--output: name a file, or redirect the output to one")
        return EXIT_USAGE
    tool = {
        "name": "tegra-device-plugin",
        "version": version.VERSION,
        "revision": version.git_revision(),
    }
    archive = snapshot_capture.capture(str(options.host_root), tool)
    if options.output is None:
        sys.stdout.buffer.write(archive)
        sys.stdout.flush()
    elif not _write(options.output, archive):
        return EXIT_FAILED
    sys.stderr.write(
        f"{len(archive)} bytes. Names, addresses, serial numbers and secrets are replaced. "
        "Read the files before you send them.\n"
    )
    return EXIT_OK


def _write(path: Path, content: bytes) -> bool:
    """Write a new file. If that fails, no part of it stays, and a message says why."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    except OSError as error:
        print_error(f"--output: {error}")
        return False
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(content)
    except OSError as error:
        path.unlink(missing_ok=True)
        print_error(f"--output: {path}: {error.strerror}")
        return False
    return True


COMMANDS = {"capture": Command(_arguments, _capture)}
