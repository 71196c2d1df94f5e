# SPDX-License-Identifier: Apache-2.0
"""Helpers of several commands: print, find the settings, wait for a signal, add options."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tegra_device_plugin.config.options import ConfigError, Flags, Option

if TYPE_CHECKING:
    from tegra_device_plugin.service import ConfigWatch

S = TypeVar("S")

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


class Command(NamedTuple):
    """A command: its options, and what it does."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    main: Callable[[argparse.Namespace], int]
    epilog: str | None = None


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def print_error(text: str) -> None:
    sys.stderr.write(f"tegra-device-plugin: {text}\n")


def config_file(options: argparse.Namespace) -> Path | None:
    """Give the path of the configuration file: the flag, else the environment."""
    named: Path | None = options.config
    variable = os.environ.get("CONFIG_FILE")
    return named or (Path(variable) if variable else None)


def flags(options: argparse.Namespace, known: Sequence[Option]) -> Flags:
    """Give the settings that the command line has, None for each that it has not."""
    return {option.field: getattr(options, option.field) for option in known}


def configuration(
    options: argparse.Namespace,
    known: Sequence[Option],
    load: Callable[[Path | None, Mapping[str, str], Flags], S],
) -> ConfigWatch[S]:
    """Give the settings of a service, which `load` takes from the file, the environment and these options."""
    from tegra_device_plugin.service import ConfigWatch  # noqa: PLC0415 - only services watch

    file = config_file(options)
    given = flags(options, known)
    return ConfigWatch(file, lambda: load(file, os.environ, given))


def counted(counts: Mapping[str, int]) -> str:
    """Render resources with their counts: `4 x NAME, ...`."""
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


@contextmanager
def until_signal(wanted: bool) -> Iterator[None]:
    """If `wanted`, wait at the end of the block for SIGTERM or SIGINT, so that the block's effects last."""
    ends = (signal.SIGTERM, signal.SIGINT)
    if wanted:
        # Block both: by default they end no process 1 of a container.
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    yield
    if wanted:
        sys.stdout.flush()
        signal.sigwait(ends)


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    for option in options:
        parser.add_argument(option.flag, metavar=option.metavar, help=f"{option.help}; {option.variable}")


def add_config(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)


def add_host_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host-root", type=Path, default=Path("/"), metavar="DIR", help="where the host's files are"
    )


def add_board(parser: argparse.ArgumentParser) -> None:
    """Add the options for the board: this one, or that of a snapshot."""
    add_host_root(parser)
    parser.add_argument(
        "--from",
        dest="snapshot",
        type=Path,
        metavar="ARCHIVE",
        help="the board of a snapshot, instead of this one",
    )


@contextmanager
def board_root(options: argparse.Namespace) -> Iterator[Path]:
    """Give the root of the chosen board's files. Raises ConfigError for a snapshot that cannot be read."""
    if options.snapshot is None:
        yield options.host_root
        return
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - only here, and the plugin starts without it

    from tegra_device_plugin.snapshot import snapshot_archive  # noqa: PLC0415 - only here

    with TemporaryDirectory(prefix="snapshot-") as directory:
        try:
            snapshot_archive.unpack(snapshot_archive.load(options.snapshot), directory)
        except snapshot_archive.ArchiveError as error:
            raise ConfigError(f"{options.snapshot}: {error}") from error
        yield Path(directory)


def add_pod_resources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pod-resources",
        type=Path,
        metavar="SOCKET",
        help="the kubelet's socket (default: /var/lib/kubelet/pod-resources/kubelet.sock)",
    )
