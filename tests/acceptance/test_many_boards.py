# SPDX-License-Identifier: Apache-2.0
"""Many boards use one server: its sshd refuses none, and the load on it has a bound.

A light board is what Ansible sees of a board: an address, an sshd, facts. All are addresses of one virtual
board. They run no Docker and no pod. What is real is the server: its sshd with OpenSSH's defaults,
and what the delegated tasks start there.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import pytest

from tests.acceptance.playbook import run_playbook
from tests.lab import inventory, lab, ssh
from tests.lab.board import Board
from tests.lab.paths import lab_dir

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "many-boards"
# The tasks that site.yml delegates to the server for each agent and that need no kubelet there. They run with
# --check, so that no node is needed.
PLAYBOOK = """\
- hosts: agent
  become: true
  tasks:
    - ansible.builtin.import_role: {name: jetson_facts}
    - ansible.builtin.import_role: {name: k3s, tasks_from: agent_token}
    - ansible.builtin.import_role: {name: k3s, tasks_from: node}
"""
MAX_SESSIONS = 10  # sshd_config(5): the default
MOST = 50
FIRST_ADDRESS = 100  # in the lab's network, whose boards begin at 11
# The one sshd that stands for many must not be what refuses.
SSHD = "MaxStartups 500\nMaxSessions 500\n"


# Prints the most simultaneous tasks of Ansible. With pipelining a task is such a shell.
WATCH = """
import os, select, sys
def tasks():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split(chr(0))
        except OSError:
            continue
        yield words[0] == "/bin/sh" and words[2:3] != [] and words[2].startswith("echo BECOME-SUCCESS")
most = 0
while not select.select([sys.stdin], [], [], 0.05)[0]:
    most = max(most, sum(tasks()))
print(most)
"""


@dataclass(frozen=True)
class Light:
    name: str
    address: str
    variables = MappingProxyType[str, object]({})


@pytest.fixture(scope="module")
def boards() -> Iterator[tuple[Board, list[Light]]]:
    """A server with K3s, and light boards that lean on it."""
    with lab.fresh(LAB, (lab.DEFAULT_TYPE,) * 2) as (server, body):
        run_playbook(LAB, "site.yml", f"--limit={server.name}", "--skip-tags=gpu_verify").checked()
        body.exec("sh", "-c", f"printf '{SSHD}' > /etc/ssh/sshd_config.d/many.conf && systemctl reload ssh")
        known = ssh.known_hosts_path(LAB).read_text().splitlines()
        key = next(line.partition(" ")[2] for line in known if line.split()[0] == body.address)
        network = server.address.rpartition(".")[0]
        light = [Light(f"light-{number}", f"{network}.{FIRST_ADDRESS + number}") for number in range(MOST)]
        for one in light:
            body.exec("ip", "address", "add", f"{one.address}/24", "dev", "eth0")
            ssh.trust(LAB, one.address, key)
        yield server, light


@contextmanager
def watched(server: Board) -> Iterator[list[int]]:
    """Yield a list that has the most simultaneous tasks of the server once the block has ended."""
    peaks: list[int] = []
    command = ["docker", "exec", "--interactive", server.container, "python3", "-c", WATCH]
    watch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield peaks
    finally:
        said, _ = watch.communicate("\n", timeout=60)
    peaks.append(int(said))


@pytest.mark.parametrize("count", [25, MOST])
def test_every_board_is_served_within_the_bound(boards: tuple[Board, list[Light]], count: int) -> None:
    """site.yml delegates tasks to the server for so many boards at the same time."""
    server, light = boards
    path = lab_dir(LAB) / f"light-{count}.ini"
    path.write_text(inventory.render(LAB, [server, *light[:count]]))
    (lab_dir(LAB) / "light.yml").write_text(PLAYBOOK)
    with watched(server) as peaks:
        run = run_playbook(LAB, f"../.lab/{LAB}/light.yml", "--check", f"--forks={count}", inventory=path)
    assert run.returncode == 0, run.why
    assert len(run.recap) == count
    assert not [name for name, recap in run.recap.items() if recap.unreachable or recap.failed]
    # A shell outlives its task's answer for a moment, so there can be more than the limit.
    assert 1 < peaks[0] <= MAX_SESSIONS
