# SPDX-License-Identifier: Apache-2.0
"""The lab: virtual Jetson boards (systemd containers with a simulated Tegra) reached over SSH.

`python -m tests.lab up` brings boards up, `down` removes every trace. README.md says what is simulated.
"""

from pathlib import Path

from tools.cache import CHECKOUT

LABS = CHECKOUT / ".lab"
"""The state of every lab of this checkout."""


def lab_dir(name: str) -> Path:
    """Return the state directory of one lab: SSH key, known_hosts, inventory.ini, bundle/."""
    return LABS / name
