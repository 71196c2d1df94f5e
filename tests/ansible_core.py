# SPDX-License-Identifier: Apache-2.0
"""Releases of ansible-core that tests run playbooks with, besides that of the environment."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.cache import cache, locked

# By the one for JetPack 4, and the last one without data tagging. Python 3.13 is too new for 2.16.
OLDER = {"2.16": "2.16.19", "2.18": "2.18.12"}
TOO_NEW = {"2.16": (3, 13)}
NEWEST, OLDEST = "2.19", "2.16"
CORES = (NEWEST, pytest.param(OLDEST, marks=pytest.mark.acceptance))
"""For tests with both. CI runs them with one, `make acceptance` with the other."""


def core(line: str) -> Path | None:
    """Directory with the `ansible` package of a release, downloaded once; None for the tests' environment."""
    if line == NEWEST:
        return None
    if sys.version_info[:2] >= TOO_NEW.get(line, (4, 0)):
        pytest.skip(
            f"ansible-core {line} does not run with Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    path = cache() / "ansible-core" / OLDER[line]
    with locked("ansible-core"):
        if not (path / "ansible/release.py").exists():
            # Its dependencies are those of the environment.
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(path)]
            subprocess.run([*command, f"ansible-core=={OLDER[line]}"], check=True)
    return path
