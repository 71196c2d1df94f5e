# SPDX-License-Identifier: Apache-2.0
"""Commands as a person runs them, with a terminal or without one, and scripts that replace programs."""

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_SECONDS = 120


def run(
    command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str], typed: str | None = None
) -> tuple[int, str]:
    """Run a command with a terminal on which this is typed, or without one; its status and output."""
    ours, theirs = pty.openpty() if typed is not None else (-1, subprocess.DEVNULL)
    if typed is not None:
        os.write(ours, typed.encode())
    ran = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if typed is not None:
        os.close(ours)
        os.close(theirs)
    return ran.returncode, ran.stdout


def script(path: Path, text: str) -> None:
    """Write a program. One that was a link to a program elsewhere is replaced, not written through."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
