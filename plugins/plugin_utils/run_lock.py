# SPDX-License-Identifier: Apache-2.0
"""User, playbook and process of this run, and the other runs of Ansible on this controller."""

from __future__ import annotations

import datetime
import getpass
import os
import socket
from pathlib import Path
from typing import Any

from ansible import context

PROC = Path("/proc")


def command_line(process: Path) -> bytes:
    """Arguments of a process; empty when it has ended."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def identity(process: Path) -> str:
    """Number and start time of a process (proc(5), stat): a later process may get the same number."""
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return process.name
    return f"{process.name}:{stat.rpartition(')')[2].split()[19]}"


def run_process(proc: Path, pid: int) -> Path:
    """The process of this run, seen from one of its workers: Ansible's workers are copies of it."""
    process = proc / str(pid)
    while True:
        try:
            parent = proc / (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return process
        if not command_line(process) or command_line(parent) != command_line(process):
            return process
        process = parent


def alive(proc: Path) -> list[str] | None:
    """Ansible's processes on this computer; None without /proc."""
    if not proc.is_dir():
        return None
    return [
        identity(process)
        for process in proc.iterdir()
        if process.name.isdigit() and b"ansible" in command_line(process)
    ]


def sees_all(proc: Path) -> bool:
    """Whether /proc shows other users' processes: not if it is mounted with hidepid (proc(5))."""
    return bool(command_line(proc / "1"))


def controller(proc: Path) -> str:
    """The computer since its last start, or this container: where process numbers mean the same."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {(proc / 'self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def user() -> str:
    """Name of the user. In a container a user may have only a number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def run(now: datetime.datetime, proc: Path = PROC) -> dict[str, Any]:
    """User, playbook and start of this run, and the processes that show which runs have ended."""
    here = run_process(proc, os.getpid()) if proc.is_dir() else Path(str(os.getppid()))
    playbooks = context.CLIARGS.get("args") or ("a playbook",)
    return {
        "who": f"{user()}@{socket.gethostname()}",
        "playbook": Path(playbooks[0]).name,
        "since": now.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "controller": controller(proc),
        "process": identity(here),
        "alive": alive(proc),
        "sees_all": sees_all(proc),
    }


FILTERS = {"run_lock_run": run}
