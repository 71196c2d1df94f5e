# SPDX-License-Identifier: Apache-2.0
"""Running commands, and telling the person at the terminal what is going on."""

import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

TAIL_LINES = 20
HEARTBEAT_SECONDS = 20


class LabError(Exception):
    """The lab cannot go on; the message says what is wrong, where, and what to do."""


def say(message: str) -> None:
    """Write one progress line to stderr (stdout is for results)."""
    sys.stderr.write(f"lab: {message}\n")
    sys.stderr.flush()


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, remind of it while it runs for long, and say how long it took."""
    start = time.monotonic()
    done = threading.Event()

    def remind() -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            say(f"{title}: still at it, {time.monotonic() - start:.0f} s")

    say(title)
    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        done.set()
        reminder.join()
    say(f"{title}: done in {time.monotonic() - start:.1f} s")


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return it with its captured output as text.

    `env` replaces the environment, `timeout` is in seconds. Raises LabError, with the tail of what the
    command wrote, when it is missing or too slow, or (unless `check` is false) when its exit status is not 0.
    """
    command = [str(arg) for arg in argv]
    try:
        result = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(f"cannot run {command[0]}: {error.strerror}: {error.filename}") from error
    except subprocess.TimeoutExpired as error:
        said = b"".join(
            part if isinstance(part, bytes) else part.encode()
            for part in (error.stdout, error.stderr)
            if part
        )
        raise LabError(
            f"{shlex.join(command)}: no end after {timeout:g} s\n{tail(said.decode(errors='replace'))}"
        ) from error
    if check and result.returncode != 0:
        said_text = tail(result.stdout + result.stderr)
        raise LabError(f"{shlex.join(command)}: exit status {result.returncode}\n{said_text}".rstrip())
    return result


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a text, indented for an error message."""
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines()[-lines:])
