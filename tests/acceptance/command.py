# SPDX-License-Identifier: Apache-2.0
"""Run a command in the checkout, as somebody at a terminal there would."""

import os
import subprocess

from tools.cache import CHECKOUT

# The slowest command of the tests, a Molecule scenario on several boards, on a very busy two-core machine.
TIMEOUT_SECONDS = 1800


def run_here(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout; stdout has both of its streams."""
    return subprocess.run(
        argv,
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
