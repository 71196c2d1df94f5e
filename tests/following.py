# SPDX-License-Identifier: Apache-2.0
"""Reads the output of a command line by line while it runs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Process = subprocess.Popen[str]


class Ended(NamedTuple):
    """A command at its end, with both of its streams."""

    returncode: int
    output: str


def follow(
    command: Sequence[str | Path],
    directory: Path,
    environment: Mapping[str, str],
    *,
    seconds: float,
    on_line: Callable[[str, Process], object],
    late: Callable[[Process], None] = Process.kill,
) -> Ended:
    """Run a command to its end, without input; `on_line` gets each line when it is written, and the process.

    After `seconds`, `late` ends it.
    """
    lines = []
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        end = threading.Timer(seconds, late, [process])
        end.start()
        try:
            for line in process.stdout:
                lines.append(line)
                on_line(line, process)
        finally:
            end.cancel()
    return Ended(process.returncode, "".join(lines))
