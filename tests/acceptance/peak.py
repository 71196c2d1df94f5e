# SPDX-License-Identifier: Apache-2.0
"""The peak load of a board while playbooks run: simultaneous tasks of Ansible, and memory."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.lab.board import Board

# Prints the most simultaneous tasks of Ansible, and the most memory beyond that at the start (KiB).
# With pipelining a task is such a shell. RssAnon is what a process has for itself (proc(5)).
WATCH = """
import os, select, sys
def observe():
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
before = observe()[1]
most = [0, 0]
while not select.select([sys.stdin], [], [], 0.05)[0]:
    tasks, memory = observe()
    most = [max(most[0], tasks), max(most[1], memory - before)]
print(*most)
"""


@dataclass(frozen=True)
class Peak:
    """The peak of the server: simultaneous tasks of Ansible, and MiB beyond those at the start."""

    tasks: int
    mebibytes: int


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
