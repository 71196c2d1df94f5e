# SPDX-License-Identifier: Apache-2.0
"""Commands as a person runs them, with a terminal or without one, and scripts that replace programs."""

import io
import os
import pty
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_SECONDS = 120


def run(
    command: Sequence[str | Path],
    cwd: Path,
    environment: Mapping[str, str],
    typed: str | None = None,
    answers: Sequence[tuple[str, str]] = (),
) -> tuple[int, str]:
    """Run a command; its status and output.

    It has a terminal on which `typed` is typed before it starts, and each answer after its question. With
    neither it has no terminal.
    """
    ours, theirs = pty.openpty() if typed is not None or answers else (-1, subprocess.DEVNULL)
    if typed:
        os.write(ours, typed.encode())
    said, waiting = "", [*answers]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # no terminal of the person who runs the tests
    ) as running:
        assert isinstance(running.stdout, io.BufferedReader)
        limit = threading.Timer(LIMIT_SECONDS, running.kill)
        limit.start()
        while output := running.stdout.read1():
            said += output.decode(errors="replace")
            if waiting and said.endswith(waiting[0][0]):
                os.write(ours, f"{waiting.pop(0)[1]}\n".encode())
        limit.cancel()
    if ours >= 0:
        os.close(ours)
        os.close(theirs)
    assert not waiting, f"not asked: {waiting[0][0]}\n{said}"
    return running.returncode, said


def script(path: Path, text: str) -> None:
    """Write a program. One that was a link to a program elsewhere is replaced, not written through."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def programs_without(directory: Path, *names: str) -> str:
    """Make a directory with all programs of this machine but some, for PATH; return its path."""
    directory.mkdir()
    for place in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for one in Path(place).iterdir() if Path(place).exists() else ():
            if one.name not in names and not (directory / one.name).is_symlink():
                (directory / one.name).symlink_to(one)
    return str(directory)
