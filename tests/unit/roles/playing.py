# SPDX-License-Identifier: Apache-2.0
"""Runs a playbook on this machine, for the tests that need no board."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs import CHECKOUT


def play(
    inventory: Path, playbook: str | Path, *arguments: str, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook with the checkout's roles; standard output and standard error are one."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            f"--inventory={inventory}",
            *arguments,
            playbook,
        ],
        cwd=CHECKOUT,
        env=os.environ | {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_ROLES_PATH": f"{CHECKOUT}/roles"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
