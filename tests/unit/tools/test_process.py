# SPDX-License-Identifier: Apache-2.0
"""Running commands: what is returned, what an error says, what an interruption leaves."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.process import ToolError, run

SECONDS = 10


def ended(pid: int) -> bool:
    """Say whether a process ends in time: it closes its pipes, which `run` waits for, a moment earlier."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], SECONDS)[0])
    finally:
        os.close(process)


def test_a_failure_names_the_command_its_status_and_its_last_words() -> None:
    with pytest.raises(ToolError, match=r"(?s)sh -c .*: exit status 3\n.*cannot open it") as caught:
        run(["sh", "-c", "seq 100; echo cannot open it >&2; exit 3"])
    assert "100" in str(caught.value)
    assert "\n  12\n" not in str(caught.value)


def test_a_slow_command_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(ToolError, match=r"no end after 2 s\n  so far"):
        run(["sh", "-c", f"echo so far; sleep 100 & echo $! > {pid_file}; wait"], timeout=2)
    assert ended(int(pid_file.read_text()))


def test_an_interruption_ends_the_command_with_its_children(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"from tools.process import run; run(['sh', '-c', 'sleep 100 & echo $! > {pipe}; wait'])"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as lab:
        sleeper = int(pipe.read_text())
        lab.send_signal(signal.SIGINT)
        assert lab.wait(timeout=20) != 0
    assert ended(sleeper)
