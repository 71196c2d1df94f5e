# SPDX-License-Identifier: Apache-2.0
"""A terminal for commands that write to one, and what is left on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping

from tools.cache import CHECKOUT

CLOCK = re.compile(r"\b\d+:\d\d\b")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = 80


class Terminal:
    """A terminal of COLUMNS columns, and a run in it."""

    def __init__(self, arguments: list[str], env: Mapping[str, str]) -> None:
        self._reads, writes = pty.openpty()
        fcntl.ioctl(writes, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            arguments,
            cwd=CHECKOUT,
            env=env,
            stdin=writes,
            stdout=writes,
            stderr=writes,
            start_new_session=True,
        )
        os.close(writes)
        self.written = ""

    def until(self, text: str) -> None:
        """Read until the run has written a text; to its end with ''."""
        while not text or text not in self.written:
            try:
                read = os.read(self._reads, 4096)
            except OSError:  # the last one has closed the terminal
                read = b""
            if not read:
                assert not text, self.written
                os.close(self._reads)
                self.process.wait()
                return
            self.written += read.decode()

    @property
    def screen(self) -> list[str]:
        """What is left on the screen, without the times."""
        lines = self.written.replace("\r\n", "\n").rstrip("\n").split("\n")
        return [CLOCK.sub("T", COLOUR.sub("", one.rpartition("\x1b[K")[2])) for one in lines]


def rows(lines: list[str]) -> int:
    """Rows of a terminal that the lines take."""
    return sum(max(1, -(-len(line) // COLUMNS)) for line in lines)
