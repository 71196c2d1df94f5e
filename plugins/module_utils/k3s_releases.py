# SPDX-License-Identifier: Apache-2.0
"""Versions of K3s.

Runs on the board: Python 3.6 compatible.
"""

import re
from typing import Dict


def is_older(version: str, first_patch: Dict[int, int]) -> bool:
    """Is a version, such as v1.33.5+k3s1, older than the first patch that its minor version has to have?

    `first_patch` is {minor: patch}. Minor versions above these have it from the start; those below never.
    Text that is no version is older.
    """
    found = re.match(r"v1\.(\d+)\.(\d+)", version)
    minor, patch = [int(number) for number in found.groups()] if found else (0, 0)
    return minor < min(first_patch) or patch < first_patch.get(minor, 0)


def named(first_patch: Dict[int, int]) -> str:
    """The versions as text."""
    return ", ".join("1.{}.{}".format(*one) for one in sorted(first_patch.items()))
