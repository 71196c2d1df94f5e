# SPDX-License-Identifier: Apache-2.0
"""`check-manifest`: says which lines of another system's manifest run here, and rewrites the others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tegra_device_plugin.commands.common import (
    EXIT_FAILED,
    EXIT_OK,
    Command,
    add_config,
    print_error,
    print_line,
)
from tegra_device_plugin.config.file import read_file
from tegra_device_plugin.config.options import ConfigError
from tegra_device_plugin.sharing.manifests.check import Report, check, rewrite
from tegra_device_plugin.sharing.manifests.findings import VERDICTS, Finding
from tegra_device_plugin.sharing.manifests.text import ManifestError

STANDARD_INPUT = "-"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a manifest; - reads standard input")
    add_config(parser, "the configuration of the nodes; without it, the names choose a preset")
    parser.add_argument(
        "--host-root", type=Path, metavar="DIR", help="percentages of --config are of this board's memory"
    )
    parser.add_argument(
        "--rewrite", action="store_true", help="print the manifest with the lines that run here in its place"
    )


def _check(options: argparse.Namespace) -> int:
    """Print a line for each finding; the exit code shows whether all objects run. Raises ConfigError."""
    config = read_file(options.config, options.host_root) if options.config else None
    try:
        text = _read(options.file)
        reports = check(text, config)
        if options.rewrite:
            text = rewrite(text, reports)
            reports = check(text, config)
    except ManifestError as error:
        raise ConfigError(f"{options.file}:{error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{options.file}: not text: {error}") from error
    refused = [one for report in reports for one in report.findings if one.verdict == "refused"]
    if options.rewrite:
        print_line(text.rstrip("\n"))
        for finding in refused:
            print_error("\n".join(_lines(options.file, finding)))
    else:
        for report in reports:
            print_line(_summary(options.file, report))
            for finding in report.findings:
                print_line("\n".join(_lines(options.file, finding)))
        if not reports:
            print_line(f"{options.file}: no object that requests a GPU")
    return EXIT_FAILED if refused else EXIT_OK


def _read(file: str) -> str:
    return sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text("utf-8")


def _summary(file: str, report: Report) -> str:
    preset = f", with preset {report.preset}" if report.preset else ""
    return f"{file}:{report.line}: {report.kind} {report.name}: {VERDICTS[report.verdict]}{preset}"


def _lines(file: str, finding: Finding) -> Iterator[str]:
    field = finding.field
    yield f"{file}:{field.line}: {field.path}" + (f": {field.text}" if field.text else "")
    yield f"  {finding.verdict}: {finding.text}"
    if finding.instead is not None:
        yield from (f"  write: {line}" for line in finding.instead)
        if not finding.instead:
            yield "  remove the line"


COMMANDS = {"check-manifest": Command(_arguments, _check)}
