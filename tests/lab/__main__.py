# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.lab`. Exit status: 0 done, 1 could not, 2 wrong usage, 130 interrupted."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from tests import boards
from tests.lab import k3s, lab, ssh
from tests.lab.board import PLAIN, Board
from tests.lab.vm.machine import Machine
from tools import engine
from tools.process import ToolError, say

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.lab",
        description="Virtual Jetson boards: systemd containers with a simulated Tegra, reached over SSH.",
        epilog="tests/lab/README.md says how it works, what is simulated and what that does not prove.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="bring virtual boards up and write their inventory and bundle")
    _add_name(up)
    up.add_argument(
        "--boards", type=int, metavar="N", help="how many boards (default: as many as board types given)"
    )
    up.add_argument(
        "--board-type",
        default=lab.DEFAULT_TYPE,
        metavar="ID[,ID...]",
        help=f"which boards, the last one repeated (default: {lab.DEFAULT_TYPE}; "
        f"all: {', '.join(boards.load())}; {PLAIN}: a plain host, without a SIMULATED Tegra)",
    )
    up.add_argument(
        "--grade",
        default=lab.CONTAINER,
        choices=lab.GRADES,
        help="what the boards are: container (default), or arm64: emulated machines, each with a "
        "kernel of its own (slow; tests/lab/README.md)",
    )
    up.add_argument("--k3s", default="", metavar="WHICH", help=k3s.WHICH)

    commands.add_parser("status", help="show the labs and their boards")

    shell = commands.add_parser("shell", help="open a shell on a board over SSH, or run a command there")
    _add_name(shell)
    shell.add_argument("board", metavar="BOARD", help="e.g. jetson-1")
    shell.add_argument("argv", nargs="*", metavar="-- CMD", help="the command; without one a login shell")

    down = commands.add_parser("down", help="take a lab away without a trace")
    which = down.add_mutually_exclusive_group()
    _add_name(which)
    which.add_argument("--all", action="store_true", help="every lab of this checkout")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(COMMANDS[arguments.command](arguments))
    except ToolError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _add_name(to: argparse._ActionsContainer) -> None:
    to.add_argument("--name", default=lab.DEFAULT_NAME, help=f"the lab's name (default: {lab.DEFAULT_NAME})")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _up(arguments: argparse.Namespace) -> int:
    given = arguments.board_type.split(",")
    count = arguments.boards if arguments.boards is not None else len(given)
    types = [given[min(index, len(given) - 1)] for index in range(count)]
    fresh = arguments.name not in lab.names()
    try:
        ready = lab.up(arguments.name, types, arguments.k3s, arguments.grade)
    except KeyboardInterrupt:
        if fresh:
            say("interrupted: taking away what was made so far")
            lab.down(arguments.name)
        raise
    _show(ready)
    return 0


def _status(_arguments: argparse.Namespace) -> int:
    known = lab.names() if engine.answers() else []
    if not known:
        say("no lab is up; bring one up with `python -m tests.lab up`")
        return 0
    _show([found for name in known for found in lab.find(name)])
    return 0


def _shell(arguments: argparse.Namespace) -> int:
    addresses = {one.name: one.address for one in lab.find(arguments.name)}
    if arguments.board not in addresses:
        have = ", ".join(addresses) or "no board at all"
        raise ToolError(f"lab {arguments.name!r} has no board {arguments.board!r} (it has {have})")
    command = ssh.command(arguments.name, addresses[arguments.board], *arguments.argv)
    return subprocess.run(command, check=False).returncode


def _down(arguments: argparse.Namespace) -> int:
    for name in lab.names() if arguments.all else [arguments.name]:
        lab.down(name)
    lab.release_engine()
    return 0


def _show(found: Sequence[Board | Machine]) -> None:
    rows = [("LAB", "BOARD", "TYPE", "ADDRESS", "STATE", "DOCKER", "K3S")]
    for one in found:
        units = ("-", "-", "-")
        if one.running:
            asked = ("multi-user.target", "docker", "k3s", "k3s-agent")
            answers = one.exec("systemctl", "is-active", *asked, check=False).split()
            up, docker, server, agent = [*answers, *["?"] * 4][:4]
            units = (up, docker, server if agent == "inactive" else agent)
        rows.append((one.lab, one.name, one.type, one.address, *units))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sys.stdout.write("  ".join(map(str.ljust, row, widths)).rstrip() + "\n")


COMMANDS = {"up": _up, "status": _status, "shell": _shell, "down": _down}

if __name__ == "__main__":
    sys.exit(main())
