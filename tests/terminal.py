# SPDX-License-Identifier: Apache-2.0
"""A terminal for commands that write to one, and what is left on its screen."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path

from tools.cache import CHECKOUT

CLOCK = re.compile(r"\b\d+:\d\d\b")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COLUMNS = 80


class Terminal:
    """A terminal, and a run in it."""

    def __init__(
        self,
        arguments: list[str],
        env: Mapping[str, str],
        cwd: Path = CHECKOUT,
        columns: int = COLUMNS,
    ) -> None:
        self._terminal, writes = pty.openpty()
        fcntl.ioctl(writes, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            # SSH asks on the terminal that controls it.
            ["setsid", "--ctty", *arguments],
            cwd=cwd,
            env=env,
            stdin=writes,
            stdout=writes,
            stderr=writes,
        )
        os.close(writes)
        self.written = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._terminal, text.encode())

    def _read(self) -> bool:
        """Read once. Whether the run goes on."""
        try:
            read = os.read(self._terminal, 4096)
        except OSError:  # the last one has closed the terminal
            read = b""
        self.written += self._decoder.decode(read)
        if not read:
            os.close(self._terminal)
            self.process.wait()
        return bool(read)

    def answer(self, answers: Mapping[str, str]) -> list[str]:
        """Type a line at each of these questions until the run ends; return those that came."""
        came = []
        while self._read():
            for question in (one for one in answers if self.written.endswith(one)):
                came.append(question)
                self.type(f"{answers[question]}\n")
        return came

    def until(self, text: str) -> None:
        """Read until the run has written a text; to its end with ''."""
        while not text or text not in self.written:
            if not self._read():
                assert not text, self.written
                return

    @property
    def screen(self) -> list[str]:
        """What is left on the screen, without the times."""
        return [CLOCK.sub("T", COLOUR.sub("", one)) for one in self.coloured]

    @property
    def coloured(self) -> list[str]:
        """The same with colours and times."""
        lines = self.written.replace("\r\n", "\n").rstrip("\n").split("\n")
        return [one.rpartition("\x1b[K")[2] for one in lines]


def rows(lines: list[str]) -> int:
    """Rows of a terminal that the lines take."""
    return sum(max(1, -(-len(line) // COLUMNS)) for line in lines)
