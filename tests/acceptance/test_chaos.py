# SPDX-License-Identifier: Apache-2.0
"""A run ends at any moment, for any reason: the same command again makes the cluster right. Nothing is lost.

Each draw chooses by chance a playbook, a moment in it, and what ends it there. It is shown, and CHAOS_SEED
draws the same again. CHAOS_DRAWS is how many there are.
"""

import itertools
import json
import os
import random
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.openpgp import keyring
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import later_bundle
from tests.lab import board, bundle, inventory, k3s, lab_dir
from tests.lab.board import Board
from tools.debian import ensure_packages
from tools.engine import docker
from tools.process import run, say

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "chaos"
# Workers of pytest-xdist collect the same tests: the draws are known by their number alone.
SEED = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))
DRAWS = int(os.environ.get("CHAOS_DRAWS") or 6)
PLAYBOOKS = ("site.yml", "upgrade.yml", "backup.yml")
CONTROLLER, POWER, NETWORK = (
    "the controller is killed",
    "a board loses its power",
    "a board's cable is pulled",
)
# The longest pause after the start of a task, in seconds: most tasks take less.
PAUSE_SECONDS = 3.0
TASK = ("TASK [", "RUNNING HANDLER [")
# What Kubernetes does by itself takes up to this long after a board is back: a taint, a namespace that ends.
SETTLE_SECONDS = 120
# What only a run that is under way may leave on a board.
UNFINISHED = (
    "/usr/local/bin/k3s.previous",
    "/run/jetson-k3s/*.restart",
    "/run/jetson-k3s-lock/lock.json",
    "/var/lib/jetson-k3s/uploads",
    "/var/backups/jetson-k3s/.unfinished-*",
)


@dataclass(frozen=True)
class Draw:
    """What happens: `at` is the part of the playbook's tasks that have started, `pause` in seconds."""

    playbook: str
    fault: str
    board: int
    at: float
    pause: float


def draw(number: int) -> Draw:
    chance = random.Random(f"{SEED}-{number}")  # noqa: S311 - to be drawn again
    return Draw(
        playbook=chance.choice(PLAYBOOKS),
        fault=chance.choice((CONTROLLER, POWER, NETWORK)),
        board=chance.randrange(2),
        at=chance.random(),
        pause=chance.random() * PAUSE_SECONDS,
    )


def cable(one: Board) -> str:
    """The machine's end of a running board's network cable, the name of an interface here."""
    ensure_packages("iproute2")
    link = one.exec("ip", "--oneline", "link", "show", "dev", "eth0")
    here = re.search(r"eth0@if(\d+):", link)
    assert here, link
    (end,) = (
        end.parent.name
        for end in Path("/sys/class/net").glob("*/ifindex")
        if end.read_text().strip() == here[1]
    )
    return end


def plug(end: str, state: str) -> None:
    run(["ip", "link", "set", "dev", end, state])


class Fleet:
    """Two boards, what their inventory says at present, and how many tasks each playbook has."""

    def __init__(self, boards: list[Board], key: Path) -> None:
        self.boards = boards
        self.cluster = Cluster(boards)
        self.key = key
        self.bundle = inventory.bundle_path(LAB)
        self.bundles = itertools.cycle([later_bundle(LAB), self.bundle])
        self.pods = 60
        self.begun, self.struck = 0, False
        self.tasks: dict[str, int] = {}

    @property
    def icc(self) -> bool:
        """A setting of Docker's that means nothing here: Docker restarts with every other change."""
        return self.pods % 4 < 2

    def change(self, playbook: str) -> None:
        if playbook == "site.yml":
            self.pods += 1
        elif playbook == "upgrade.yml":
            self.bundle = next(self.bundles)

    def run(self, playbook: str, hit: Draw | None = None, ends: ExitStack | None = None) -> PlaybookRun:
        """Run a playbook; `hit` ends it, and `ends` puts things right afterwards."""
        kubelet = {"kubelet-arg": [f"max-pods={self.pods}"]}
        given = {
            "jetson_k3s_bundle": str(self.bundle),
            "jetson_k3s_timeout": 120,
            "k3s_backup_recipient": str(self.key),
            "k3s_server_config": k3s.SERVER_SETTINGS | kubelet,
            "k3s_agent_config": kubelet,
            "nvidia_docker_daemon_config": {"icc": self.icc},
        }
        self.begun, self.struck = 0, False

        def on_line(line: str) -> bool:
            self.begun += line.startswith(TASK)
            if hit is None or ends is None or self.struck:
                return False
            self.struck = self.begun > int(hit.at * self.tasks[playbook])
            return self.struck and self.strike(hit, ends, line.strip(" *\n"))

        return run_playbook(LAB, playbook, f"--extra-vars={json.dumps(given)}", on_line=on_line)

    def strike(self, hit: Draw, ends: ExitStack, task: str) -> bool:
        """Let it happen; True kills the controller's run."""
        one = self.boards[hit.board]
        say(f"CHAOS_SEED={SEED}: {hit.fault} ({one.name}), {hit.pause:.1f} s after {task}")
        threading.Event().wait(hit.pause)
        if hit.fault == POWER:
            docker("kill", one.container)
            ends.callback(board.start, one)
        elif hit.fault == NETWORK:
            end = cable(one)
            ends.callback(plug, end, "up")
            plug(end, "down")
        return hit.fault == CONTROLLER

    def is_settled(self) -> bool:
        """Kubernetes knows of every board that it is back, and has ended what was to end."""
        return (
            not any(node["spec"].get("taints") for node in self.cluster.nodes())
            and self.cluster.allocatable() == {one.name: 1 for one in self.boards}
            and "gpu-verify" not in self.cluster.kubectl("get", "namespaces", "--output=name")
        )

    def check(self) -> None:
        """The boards are as the inventory says, take pods, and nothing is left of a run."""
        nodes = self.cluster.nodes()
        assert [node["status"]["capacity"]["pods"] for node in nodes] == [str(self.pods)] * len(self.boards)
        for node in nodes:
            assert {"taints", "unschedulable"} & set(node["spec"]) == set(), node["spec"]
            assert "cordoned" not in json.dumps(node["metadata"].get("annotations", {}))
        self.cluster.kubectl("rollout", "status", "deployment/jobs", "--timeout=90s")
        version = k3s.named_version("2") if self.bundle.name == "newer" else k3s.VERSION
        for one in self.boards:
            assert bundle.k3s_version(one.exec("k3s", "--version")) == version
            assert one.exec("sh", "-c", f"ls -d {' '.join(UNFINISHED)} 2>/dev/null", check=False) == ""
            assert f'"icc": {json.dumps(self.icc)}' in one.exec("cat", "/etc/docker/daemon.json")

    def check_backups(self) -> None:
        """Every file with a backup's name can be decrypted."""
        for file in (lab_dir(LAB) / "backups").glob("*.gpg"):
            decrypted = subprocess.run(
                ["gpg", "--batch", "--quiet", "--decrypt", file], stdout=subprocess.DEVNULL, check=False
            )
            assert decrypted.returncode == 0, file.name


@pytest.fixture(scope="module")
def fleet(boards: list[Board]) -> Iterator[Fleet]:
    """Two boards on which each playbook has run to its end once: so many tasks it has."""
    with keyring() as key:
        made = Fleet(boards, key)
        made.run("site.yml").checked()
        for playbook in PLAYBOOKS:
            made.change(playbook)
            made.run(playbook).checked()
            made.tasks[playbook] = made.begun
        made.cluster.create_jobs()
        yield made


@pytest.mark.parametrize("number", range(DRAWS))
def test_same_command_again_makes_it_right(fleet: Fleet, number: int) -> None:
    hit = draw(number)
    kept = f"configmap/draw-{number}"
    fleet.cluster.kubectl("create", *kept.split("/"))
    fleet.change(hit.playbook)
    with ExitStack() as ends:
        cut_off = fleet.run(hit.playbook, hit, ends)
        assert fleet.struck, cut_off.output
    for one in fleet.boards:
        board.wait_until_up(one)
    again = fleet.run(hit.playbook)
    assert again.returncode == 0, f"{again.why}\n\nand before:\n{cut_off.output}"
    wait_until(fleet.is_settled, "Kubernetes knows that all boards are back", SETTLE_SECONDS)
    fleet.check()
    fleet.check_backups()
    assert kept in fleet.cluster.kubectl("get", "configmaps", "--output=name").split()


def test_then_nothing_is_left_to_do(fleet: Fleet) -> None:
    fleet.run("site.yml").unchanged()
