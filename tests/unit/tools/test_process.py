# SPDX-License-Identifier: Apache-2.0
"""Commands that the image and the lab are built by: their results, errors and interruptions."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.process import ToolError, compile_packages, run

SECONDS = 10


def ended(pid: int) -> bool:
    """True if a process ends in time: it closes its pipes, which `run` waits for, a moment earlier."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], SECONDS)[0])
    finally:
        os.close(process)


def test_a_failure_names_the_command_its_status_and_its_last_lines() -> None:
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


def test_an_interruption_during_the_start_ends_the_command() -> None:
    script = """
import os, signal, subprocess
from tools.process import run

class Interrupted(subprocess.Popen):
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGINT)

subprocess.Popen = Interrupted
run(["sleep", "100"])
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as lab:
        assert lab.stdout
        sleeper = int(lab.stdout.readline())
        assert lab.wait(timeout=20) != 0
    assert ended(sleeper)


def test_a_failed_build_shows_the_compilers_messages_and_no_package_names(tmp_path: Path) -> None:
    script = "echo example.com/a; echo 'a.go:1: no such thing' >&2; exit 3"
    with pytest.raises(ToolError, match=r"^compiling failed with status 3\n  a\.go:1: no such thing$"):
        compile_packages(["sh", "-c", script], "compiling", 2, env=dict(os.environ), cwd=tmp_path)
