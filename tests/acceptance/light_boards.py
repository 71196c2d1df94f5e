# SPDX-License-Identifier: Apache-2.0
"""Many light boards: addresses of one virtual board, which all lean on one real server.

A light board is what Ansible sees of a board: an address, an sshd, facts. It runs no Docker, no kubelet and
no pod, so nothing of gpu_verify can be tried on it. What is real is the server: its sshd with OpenSSH's
defaults, and what the delegated tasks start there.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import inventory, lab, ssh
from tests.lab.board import Board
from tests.lab.paths import lab_dir

PLAYBOOK = "../tests/acceptance/light_boards.yml"
MOST = 50
FIRST_ADDRESS = 100  # in the lab's network, whose boards begin at 11
# The one sshd that stands for many must not be what refuses.
SSHD = "MaxStartups 500\nMaxSessions 500\n"
# Tells the most tasks of Ansible at once, and the most memory beyond what there was (KiB).
# With pipelining a task is such a shell. RssAnon is what a process has for itself (proc(5)).
WATCH = """
import os, select, sys
def look():
    tasks = memory = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split(chr(0))
            status = open(f"/proc/{pid}/status").read()
        except OSError:
            continue
        tasks += words[0] == "/bin/sh" and words[2:3] != [] and words[2].startswith("echo BECOME-SUCCESS")
        memory += int(status.partition("RssAnon:")[2].split()[0]) if "RssAnon:" in status else 0
    return tasks, memory
before = look()[1]
most = [0, 0]
while not select.select([sys.stdin], [], [], 0.05)[0]:
    tasks, memory = look()
    most = [max(most[0], tasks), max(most[1], memory - before)]
print(*most)
"""


@dataclass(frozen=True)
class Peak:
    """The most that the server had at once: tasks of Ansible, and MiB beyond what it had before."""

    tasks: int
    mebibytes: int


@dataclass(frozen=True)
class Light:
    name: str
    address: str
    variables = MappingProxyType[str, object]({})


@dataclass(frozen=True)
class Fleet:
    """A server, and light boards that lean on it."""

    name: str
    server: Board
    boards: tuple[Light, ...]

    def run(self, count: int, *arguments: str) -> tuple[PlaybookRun, Peak]:
        """Have so many boards do, all at once, what site.yml delegates to the server for each of them."""
        path = lab_dir(self.name) / f"light-{count}.ini"
        path.write_text(inventory.render(self.name, [self.server, *self.boards[:count]]))
        with watched(self.server) as peaks:
            run = run_playbook(self.name, PLAYBOOK, "--check", f"--forks={count}", *arguments, inventory=path)
        return run, peaks[0]


@contextmanager
def watched(server: Board) -> Iterator[list[Peak]]:
    """Yield a list that has the server's peak once the block has ended."""
    peaks: list[Peak] = []
    watch = subprocess.Popen(
        ["docker", "exec", "--interactive", server.container, "python3", "-c", WATCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield peaks
    finally:
        said, _ = watch.communicate("\n", timeout=60)
    tasks, kibibytes = map(int, said.split())
    peaks.append(Peak(tasks, kibibytes // 1024))


@contextmanager
def fleet(name: str) -> Iterator[Fleet]:
    """Bring a server up with K3s, and the board that stands for the light ones; take both away at the end."""
    with lab.fresh(name, (lab.DEFAULT_TYPE,) * 2) as (server, body):
        run = run_playbook(name, "site.yml", f"--limit={server.name}", "--skip-tags=gpu_verify")
        if run.returncode != 0:
            raise RuntimeError(run.why)
        _let_everybody_in(body)
        network = server.address.rpartition(".")[0]
        addresses = [f"{network}.{FIRST_ADDRESS + number}" for number in range(MOST)]
        boards = tuple(Light(f"light-{number}", address) for number, address in enumerate(addresses, 1))
        key = _host_key(name, body)
        for one in boards:
            body.exec("ip", "address", "add", f"{one.address}/24", "dev", "eth0")
            ssh.trust(name, one.address, key)
        yield Fleet(name, server, boards)


def _let_everybody_in(board: Board) -> None:
    board.exec("sh", "-c", f"printf '{SSHD}' > /etc/ssh/sshd_config.d/many.conf && systemctl reload ssh")


def _host_key(lab_name: str, board: Board) -> str:
    lines = ssh.known_hosts_path(lab_name).read_text().splitlines()
    return next(line.partition(" ")[2] for line in lines if line.split()[0] == board.address)
