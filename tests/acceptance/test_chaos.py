# SPDX-License-Identifier: Apache-2.0
"""Whatever ends a run at whatever moment: the same command again makes the fleet right, and nothing is lost.

Each draw chooses by chance a playbook, a moment in it, and what ends it there. The same `CHAOS_SEED` draws
the same again, and `CHAOS_DRAWS` says how many each fleet has. A fleet is a server and an agent, and lives
on. There are two: boards mostly wait, and workers of pytest's take one each.
"""

import itertools
import json
import os
import random
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
from tests.lab import board, bundle, inventory, k3s
from tests.lab.board import Board
from tests.lab.lab import fresh
from tests.lab.paths import lab_dir
from tools.engine import docker
from tools.process import say

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

FLEETS = (1, 2)
# All workers of a run have the same id of pytest-xdist's.
SEED = (
    os.environ.get("CHAOS_SEED")
    or os.environ.get("PYTEST_XDIST_TESTRUNUID", "")[:6]
    or str(random.SystemRandom().randrange(10**6))
)
DRAWS = int(os.environ.get("CHAOS_DRAWS") or 15)
PLAYBOOKS = ("site.yml", "site.yml", "upgrade.yml", "upgrade.yml", "backup.yml")
CONTROLLER, POWER, NETWORK = (
    "the controller is killed",
    "a board loses its power",
    "a board's cable is pulled",
)
# The longest pause after a task has begun, in seconds: most take less.
PAUSE_SECONDS = 3.0
# Ten times what K3s takes to start here. An agent whose server is gone is waited for so long twice: at its
# start, and when it goes back to its old version.
WAITS = "k3s_timeout: 120\n"
TASK = ("TASK [", "RUNNING HANDLER [")
# What Kubernetes does by itself takes up to this long after a board is back: a taint, a namespace that ends.
SETTLE_SECONDS = 120
# What only a run that is under way may leave on a board.
UNFINISHED = (
    "/usr/local/bin/k3s.previous",
    "/run/jetson-k3s/*.restart",
    "/run/jetson-k3s-lease/lease.json",
    "/var/lib/jetson-k3s/uploads",
    "/var/backups/jetson-k3s/.unfinished-*",
)


@dataclass(frozen=True)
class Draw:
    """What happens: `at` is the part of the playbook's tasks that have begun by then, `pause` in seconds."""

    number: int
    playbook: str
    fault: str
    board: int
    at: float
    pause: float


def draw(number: int) -> Draw:
    chance = random.Random(f"{SEED}-{number}")  # noqa: S311 - to be drawn again
    return Draw(
        number=number,
        playbook=chance.choice(PLAYBOOKS),
        fault=chance.choice((CONTROLLER, POWER, NETWORK)),
        board=chance.randrange(2),
        at=chance.random(),
        pause=chance.random() * PAUSE_SECONDS,
    )


class Fleet:
    """Two boards, what their inventory says at present, and how long each playbook is."""

    def __init__(self, lab: str, number: int, boards: list[Board], key: Path) -> None:
        self.lab = lab
        self.number = number
        self.boards = boards
        self.cluster = Cluster(boards)
        self.key = key
        self.bundle = inventory.bundle_path(lab)
        self.bundles = itertools.cycle([self.bundle.with_name("newer"), self.bundle])
        self.pods = 60
        self.begun, self.struck = 0, False
        self.tasks: dict[str, int] = {}

    @property
    def icc(self) -> bool:
        """A setting of Docker's, of no meaning here."""
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
            "k3s_backup_recipient": str(self.key),
            "k3s_backup_keep": 3,
            "k3s_server_config": k3s.SERVER_SETTINGS | kubelet,
            "k3s_agent_config": kubelet,
            # Restarts Docker with every other change.
            "nvidia_docker_daemon_config": {"icc": self.icc},
        }
        self.begun, self.struck = 0, False

        def on_line(line: str) -> bool:
            self.begun += line.startswith(TASK)
            if hit is None or ends is None or self.struck:
                return False
            self.struck = self.begun > int(hit.at * self.tasks[playbook])
            return self.struck and self.strike(hit, ends, line.strip(" *\n"))

        return run_playbook(self.lab, playbook, f"--extra-vars={json.dumps(given)}", on_line=on_line)

    def strike(self, hit: Draw, ends: ExitStack, task: str) -> bool:
        """Let it happen; True kills the controller's run."""
        one = self.boards[hit.board]
        say(f"CHAOS_SEED={SEED} draw {hit.number}: {hit.fault} ({one.name}), {hit.pause:.1f} s after {task}")
        threading.Event().wait(hit.pause)
        if hit.fault == POWER:
            docker("kill", one.container)
            ends.callback(board.start, one)
        elif hit.fault == NETWORK:
            end = board.cable(one)
            board.plug(end, plugged=False)
            ends.callback(board.plug, end, plugged=True)
        return hit.fault == CONTROLLER

    def is_settled(self) -> bool:
        """Kubernetes knows of every board that it is back, and has ended what was to end."""
        nodes = json.loads(self.cluster.kubectl("get", "nodes", "--output=json"))["items"]
        return (
            not any(node["spec"].get("taints") for node in nodes)
            and self.cluster.allocatable() == {one.name: 1 for one in self.boards}
            and "gpu-verify" not in self.cluster.kubectl("get", "namespaces", "--output=name")
        )

    def is_right(self) -> None:
        """The boards are as the inventory says, take pods, and nothing is left of a run."""
        nodes = json.loads(self.cluster.kubectl("get", "nodes", "--output=json"))["items"]
        assert [node["status"]["capacity"]["pods"] for node in nodes] == [str(self.pods)] * len(self.boards)
        for node in nodes:
            assert {"taints", "unschedulable"} & set(node["spec"]) == set(), node["spec"]
            assert "jetson-k3s.github.io/cordoned" not in node["metadata"].get("annotations", {})
        self.cluster.kubectl("rollout", "status", "deployment/jobs", "--timeout=90s")
        version = bundle.k3s_version(self.boards[0].exec("k3s", "--version"))
        assert version == k3s.named_version("2" if self.bundle.name == "newer" else "")
        for one in self.boards:
            assert one.exec("k3s", "--version").split()[2] == version
            assert one.exec("sh", "-c", f"ls -d {' '.join(UNFINISHED)} 2>/dev/null", check=False) == ""
            assert f'"icc": {json.dumps(self.icc)}' in one.exec("cat", "/etc/docker/daemon.json")

    def has_all_backups(self) -> None:
        """Every file with a backup's name is a whole one."""
        for file in (lab_dir(self.lab) / "backups").glob("*.gpg"):
            done = subprocess.run(
                ["gpg", "--batch", "--quiet", "--decrypt", file], stdout=subprocess.DEVNULL, check=False
            )
            assert done.returncode == 0, file.name


@pytest.fixture(scope="module", params=FLEETS)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """A fleet on which each playbook has run to its end once: so many tasks it has."""
    lab = f"chaos-{request.param}"
    with keyring() as key, fresh(lab, ("agxorin-jp6", "orinnano-jp6")) as boards:
        variables = lab_dir(lab) / "group_vars" / "k3s_cluster.yml"
        variables.parent.mkdir()
        variables.write_text(WAITS)
        made = Fleet(lab, request.param, boards, key)
        bundle.write(made.bundle.with_name("newer"), version_suffix="2")
        made.run("site.yml").checked()
        for playbook in sorted(set(PLAYBOOKS)):
            made.change(playbook)
            made.run(playbook).checked()
            made.tasks[playbook] = made.begun
        made.cluster.create_jobs()
        yield made


@pytest.mark.parametrize("turn", range(DRAWS))
def test_the_same_command_again_makes_it_right(fleet: Fleet, turn: int) -> None:
    hit = draw(turn * len(FLEETS) + fleet.number - 1)
    kept = f"configmap/draw-{hit.number}"
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
    fleet.is_right()
    fleet.has_all_backups()
    assert kept in fleet.cluster.kubectl("get", "configmaps", "--output=name").split()


def test_then_nothing_is_left_to_do(fleet: Fleet) -> None:
    wait_until(lambda: set(fleet.cluster.allocatable().values()) == {1}, "every GPU is offered", 60)
    fleet.run("site.yml").unchanged()
