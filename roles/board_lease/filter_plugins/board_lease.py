# SPDX-License-Identifier: Apache-2.0
"""Who runs which playbook on this controller, and which runs there are."""

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


def token(process: Path) -> str:
    """A process, as no later one with its number is called: the number, and when it began (proc(5), stat)."""
    try:
        stat = (process / "stat").read_text()
    except OSError:
        return process.name
    return f"{process.name}:{stat.rpartition(')')[2].split()[19]}"


def of_run(proc: Path, pid: int) -> Path:
    """The process of the run to which this one belongs: Ansible's workers are copies of it."""
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
    """Ansible's processes on this computer; None where they cannot be known."""
    if not proc.is_dir():
        return None
    return [
        token(process)
        for process in proc.iterdir()
        if process.name.isdigit() and b"ansible" in command_line(process)
    ]


def sees_all(proc: Path) -> bool:
    """Are other users' processes told, too? Not where /proc is mounted with hidepid (proc(5))."""
    return bool(command_line(proc / "1"))


def controller(proc: Path) -> str:
    """This computer since its last start, or this container: where process numbers mean the same."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {(proc / 'self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def user() -> str:
    """Name of the user; in a container it may be a number without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def run(now: datetime.datetime, proc: Path = PROC) -> dict[str, Any]:
    """Who runs what since when, for people; all else is for the module, which judges other runs by it."""
    here = of_run(proc, os.getpid()) if proc.is_dir() else Path(str(os.getppid()))
    playbooks = context.CLIARGS.get("args") or ("a playbook",)
    return {
        "who": f"{user()}@{socket.gethostname()}",
        "playbook": Path(playbooks[0]).name,
        "since": now.astimezone(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "controller": controller(proc),
        "process": token(here),
        "alive": alive(proc),
        "sees_all": sees_all(proc),
    }


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {"board_lease_run": run}
