# SPDX-License-Identifier: Apache-2.0
"""Measure the first day of a new user: lines, seconds and questions from a bare checkout to the proof.

On virtual boards as flashed: SSH and sudo ask for a password. The user has no SSH key, no .venv and no image
of the plugin, and types at a terminal of 80 columns. K3s' release page and Docker Hub are on this machine.
Writes what is on the screen, and the reports, for tools/docs/pictures.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance import person
from tests.acceptance.person import Person
from tests.acceptance.site import internet
from tests.lab import k3s, lab
from tests.lab.board import Board, as_flashed
from tests.terminal import Terminal, rows
from tools.process import say

LAB = "first-day"
HOME = "/home/jo"
"""Stands in the picture for the home of this run, a directory of tests."""
TYPE = "orinnano-jp6"
INVENTORY = """\
[server]
{server}

[agent]
{agents}

[k3s_cluster:children]
server
agent

[k3s_cluster:vars]
ansible_user=jetson
"""
COPY_KEYS = """\
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
for board in {addresses}; do ssh-copy-id -o StrictHostKeyChecking=accept-new jetson@$board; done"""


@dataclass(frozen=True)
class Day:
    """What one command, or several, took."""

    what: str
    lines: int
    seconds: float
    questions: int


@contextmanager
def flashed(boards: int, directory: Path) -> Iterator[tuple[list[Board], Person]]:
    """Boards that nobody has touched, and somebody who wants to use them."""
    with ExitStack() as stack:
        up = stack.enter_context(lab.fresh(LAB, (TYPE,) * boards))
        _, settings = stack.enter_context(internet(LAB, up[0], directory))
        for one in up:
            stack.enter_context(as_flashed(one))
        newcomer = person.new(directory / "person")
        own: Mapping[str, Any] = settings | {"k3s_server_config": k3s.SERVER_SETTINGS}
        (newcomer.checkout / "group_vars").mkdir()
        (newcomer.checkout / "group_vars/k3s_cluster.yml").write_text(json.dumps(own))
        yield up, newcomer


def typed(newcomer: Person, boards: Sequence[Board], *command: str) -> tuple[Terminal, float, int]:
    """Type a command, and an answer to each question: the terminal, the seconds, and the questions."""
    say(" ".join(command))
    began = time.monotonic()
    terminal = newcomer.at_terminal(command)
    questions: dict[str, str] = {}
    for one in boards:
        questions |= person.answers(one.address)
    asked = terminal.answer(questions)
    if terminal.process.returncode != 0:
        raise SystemExit(terminal.written)
    return terminal, time.monotonic() - began, len(asked)


def one_and_an_agent(directory: Path, out: Path) -> list[Day]:
    """install.sh for a board, and for another one as its agent."""
    days = []
    with flashed(2, directory) as (boards, newcomer):
        server, agent = boards
        for what, words, one in (
            ("one board: `./install.sh`", (), server),
            ("an agent: `./install.sh --agent-of`", ("--agent-of", server.name), agent),
        ):
            command = ("./install.sh", *words, f"jetson@{one.address}")
            terminal, seconds, questions = typed(newcomer, boards, *command)
            days.append(Day(what, rows(terminal.screen), seconds, questions))
            if one is server:
                screen = "\n".join([" ".join(command), *terminal.coloured, ""])
                (out / "install.log").write_text(screen.replace(str(newcomer.home), HOME))
                shutil.copytree(newcomer.checkout / "reports", out / "reports", dirs_exist_ok=True)
    return days


def fleet(directory: Path) -> Day:
    """Three boards by an inventory."""
    with flashed(3, directory) as (boards, newcomer):
        addresses = " ".join(one.address for one in boards)
        keys = typed(newcomer, boards, "sh", "-c", COPY_KEYS.format(addresses=addresses))
        lines = [f"{one.name} ansible_host={one.address}" for one in boards]
        made = INVENTORY.format(server=lines[0], agents="\n".join(lines[1:]))
        (newcomer.checkout / "inventory").write_text(made)
        site = typed(newcomer, boards, "./jetson-k3s", "site")
        return Day(
            "three boards: `ssh-copy-id`, an inventory, `./jetson-k3s site`",
            rows(keys[0].screen) + rows(site[0].screen),
            keys[1] + site[1],
            keys[2] + site[2],
        )


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.first_day", description=__doc__)
    parser.add_argument("out", type=Path, help="where install.log and reports/ go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="first-day-", dir="/tmp") as parent:
        days = one_and_an_agent(Path(parent, "1"), options.out)
        days.append(fleet(Path(parent, "2")))
    table = ["| from a bare checkout to the proof | lines | seconds | questions |", "|---|---|---|---|"]
    table += [f"| {day.what} | {day.lines} | {day.seconds:.0f} | {day.questions} |" for day in days]
    sys.stdout.write("\n".join([*table, f"Load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.", ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
