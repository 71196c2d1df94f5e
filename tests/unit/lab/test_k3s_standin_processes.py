# SPDX-License-Identifier: Apache-2.0
"""The K3s stand-in's children: one ends, all end; stopped in reverse; never left behind."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.k3s_standin import processes
from tests.lab.k3s_standin.errors import StandinError
from tests.lab.k3s_standin.notify import notify
from tests.lab.k3s_standin.processes import Children

CHECKOUT = Path(__file__).parents[3]
SLEEP = ["sleep", "600"]


async def forever() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


def test_a_dying_child_ends_the_others(caplog: pytest.LogCaptureFixture) -> None:
    pids: list[int] = []

    async def body(children: Children) -> None:
        await children.start("lasting", ["sh", "-c", "echo $$; exec sleep 600"])
        pids.extend(process.pid for _, process in children._running)
        await children.start("dying", ["sh", "-c", "exit 3"])
        await forever()

    assert processes.run(body) == 1
    assert "dying ended with status 3, so does k3s" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_sigterm_stops_children_last_started_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def body(children: Children) -> None:
        for name in ("first", "second"):
            await children.start(name, SLEEP)
        os.kill(os.getpid(), signal.SIGTERM)
        await forever()

    assert processes.run(body) == 0
    assert [line for line in caplog.messages if "Stopping" in line] == ["Stopping second", "Stopping first"]


def test_a_child_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.2)
    os.mkfifo(tmp_path / "ready")
    stubborn = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text("ready")
signal.pause()
"""

    async def body(children: Children) -> None:
        await children.start("stubborn", [sys.executable, "-c", stubborn, tmp_path / "ready"])
        await asyncio.to_thread((tmp_path / "ready").read_text)
        raise StandinError("reason")

    with pytest.raises(StandinError, match="reason"):
        processes.run(body)
    assert "stubborn did not stop within" in caplog.text


def test_output_of_a_child_carries_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    async def body(children: Children) -> None:
        await children.start("child", ["sh", "-c", "echo out; echo err >&2; printf %200000s x"])
        await forever()

    assert processes.run(body) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["child: out", "child: err"]
    assert sum(line.count("x") for line in lines) == 1, "a line longer than the buffer is passed on in pieces"


def test_children_die_with_a_killed_parent() -> None:
    program = """
import asyncio
from tests.lab.k3s_standin import processes
async def body(children):
    await children.start("child", ["sh", "-c", "echo $$; exec sleep 600"])
    await asyncio.Event().wait()
processes.run(body)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr is not None
        pid = int(parent.stderr.readline().split()[1])
        child = os.pidfd_open(pid)
        parent.kill()
        ended, _, _ = select.select([child], [], [], 10)
        os.close(child)
    assert ended, "the child outlived its parent"


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_readiness_reaches_systemds_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"\0{tmp_path}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name.replace("\0", "@"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name)
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_readiness_without_systemd_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
