# SPDX-License-Identifier: Apache-2.0
"""Run a command in a checkout, as somebody at a terminal there would."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.cache import CHECKOUT

# The slowest command of the tests, a Molecule scenario on several boards, on a very busy two-core machine.
TIMEOUT_SECONDS = 1800


def run_here(*argv: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout; stdout has both of its streams."""
    return run_in(CHECKOUT, os.environ | environment, *argv)


def run_in(
    directory: Path, environment: Mapping[str, str], *argv: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a command in another directory, with these variables alone."""
    return subprocess.run(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
