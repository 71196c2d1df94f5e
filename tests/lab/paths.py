# SPDX-License-Identifier: Apache-2.0
"""Where a lab keeps its state, inside the checkout."""

from pathlib import Path

from tools.cache import CHECKOUT


def labs() -> Path:
    """Return the directory with the state of every lab of this checkout."""
    return CHECKOUT / ".lab"


def lab_dir(name: str) -> Path:
    """Return the state directory of one lab: SSH key, known_hosts, inventory.ini, bundle/."""
    return labs() / name
