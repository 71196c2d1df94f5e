# SPDX-License-Identifier: Apache-2.0
"""Running commands, and telling the person at the terminal what is going on."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

TAIL_LINES = 20
HEARTBEAT_SECONDS = 20
PROGRESS_SECONDS = 15
GRACE_SECONDS = 10


class ToolError(Exception):
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

    `env` replaces the environment, `timeout` is in seconds. Raises ToolError, with the tail of what the
    command wrote, when it is missing or too slow, or (unless `check` is false) when its exit status is not 0.
    """
    command = [str(arg) for arg in argv]
    child = None
    try:
        with _uninterrupted():
            # In a process group of its own: Ctrl-C reaches us alone, and we end the command and its children.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        stdout, stderr = child.communicate(stdin, timeout)
    except BaseException as error:
        said = "".join(_end(child)) if child else ""
        if isinstance(error, subprocess.TimeoutExpired):
            text = f"{shlex.join(command)}: no end after {timeout:g} s\n{tail(said)}"
            raise ToolError(text.rstrip()) from error
        if isinstance(error, FileNotFoundError) and child is None:
            raise ToolError(f"cannot run {command[0]}: {error.strerror}: {error.filename}") from error
        raise
    if check and child.returncode != 0:
        said = tail(stdout + stderr)
        raise ToolError(f"{shlex.join(command)}: exit status {child.returncode}\n{said}".rstrip())
    return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C until the block is over: in the middle of a start nobody would know what to end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # it never comes here
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _end(child: subprocess.Popen[str]) -> tuple[str, str]:
    """End a command and its children, with time to clean up behind themselves; return its last words."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    try:
        return child.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return child.communicate()


def compile_packages(
    argv: Sequence[str], title: str, packages: int, *, env: Mapping[str, str], cwd: Path
) -> None:
    """Run a build with Go's -v, which prints a line for each of `packages`, and say how far it is.

    Raises ToolError with the compilers' own words.
    """
    start = told = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as build:  # fmt: skip
        try:
            for line in build.stdout or ():
                lines.append(line)
                if time.monotonic() - told > PROGRESS_SECONDS:
                    told = time.monotonic()
                    percent = min(99, 100 * len(lines) // packages)
                    say(f"{title}: about {percent} %, {told - start:.0f} s")
        except BaseException:
            # Interrupted: its compilers would go on in a directory that is going away.
            os.killpg(build.pid, signal.SIGKILL)
            raise
    if build.returncode != 0:
        # Without the names of the packages.
        said = "".join(line for line in lines if " " in line)
        raise ToolError(f"{title} failed with status {build.returncode}\n{tail(said, lines=40)}")
    say(f"{title}: done in {time.monotonic() - start:.0f} s")


def print_path(make: Callable[[], Path]) -> int:
    """Print the path that a command makes; return its exit status, as that of tests.lab."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        path = make()
    except ToolError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    sys.stdout.write(f"{path}\n")
    return 0


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a text, indented for an error message."""
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines()[-lines:])
