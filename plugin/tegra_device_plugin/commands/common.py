# SPDX-License-Identifier: Apache-2.0
"""What several commands do: say things, find their settings, hold on until they are told to end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tegra_device_plugin.config import settings as config

if TYPE_CHECKING:
    from tegra_device_plugin.config.watch import ConfigWatch

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def say(text: str) -> None:
    """Print what was asked for."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """Print what is wrong."""
    sys.stderr.write(f"tegra-device-plugin: {text}\n")


def config_file(options: argparse.Namespace) -> Path | None:
    """The file of settings: of the flag, else of the environment."""
    named: Path | None = options.config
    variable = os.environ.get("CONFIG_FILE")
    return named or (Path(variable) if variable else None)


def configuration(
    options: argparse.Namespace, known: tuple[config.Option, ...] = config.OPTIONS
) -> ConfigWatch:
    """The settings of a command that stays and has these options: flag over environment over file."""
    from tegra_device_plugin.config.watch import ConfigWatch  # noqa: PLC0415 - the others do not watch

    file = config_file(options)
    flags = {option.field: getattr(options, option.field, None) for option in known}
    return ConfigWatch(file, lambda: config.load(file, os.environ, flags, known)[0])


def counted(counts: Mapping[str, int]) -> str:
    """Resources with their numbers: `4 x NAME, ...`."""
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


@contextmanager
def held(wanted: bool) -> Iterator[None]:
    """Where that is wanted, wait at the end until SIGTERM or SIGINT: what was done lasts for so long."""
    ends = (signal.SIGTERM, signal.SIGINT)
    if wanted:
        # Waited for below, also as process 1 of a container, which no signal ends by itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    yield
    if wanted:
        sys.stdout.flush()
        signal.sigwait(ends)
