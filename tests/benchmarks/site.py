# SPDX-License-Identifier: Apache-2.0
"""Time site.yml and preflight.yml on provisioned boards, of this checkout and of another revision in turns.

Each revision provisions virtual boards of its own, by its own `make demo`. A run leaves out the verification,
and must change nothing. The table has medians: seconds, and the controller's processor time. The difference
of site.yml with and without the other boards is what these cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.worktree import worktree
from tools.cache import CHECKOUT
from tools.process import say

LAB = "speed-{}"
# What is run, by its name in the table.
RUNS = {
    "site.yml": ["playbooks/site.yml", "--skip-tags=gpu_verify"],
    "site.yml, one board": ["playbooks/site.yml", "--skip-tags=gpu_verify", "--limit=jetson-1"],
    "preflight.yml": ["playbooks/preflight.yml"],
}


@dataclass(frozen=True)
class Revision:
    """A checkout, its lab, and what its runs took."""

    name: str
    checkout: Path
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in RUNS})
    processor_seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in RUNS})

    @property
    def lab(self) -> str:
        """The name of its virtual boards."""
        return LAB.format(self.name)

    def provision(self, boards: int) -> None:
        """Bring up its boards, and install the cluster on them."""
        say(f"{boards} boards by {self.name}")
        subprocess.run(["make", "demo", f"LAB={self.lab}", f"BOARDS={boards}"], cwd=self.checkout, check=True)

    def remove(self) -> None:
        """Take its boards away."""
        command = [".venv/bin/python", "-m", "tests.lab", "down", "--name", self.lab]
        subprocess.run(command, cwd=self.checkout, check=False)

    def run(self, name: str, *, counts: bool) -> None:
        """Run one of RUNS once."""
        program = [".venv/bin/ansible-playbook", "-i", f".lab/{self.lab}/inventory.ini", *RUNS[name]]
        environment = os.environ | {"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
        before, began = os.times(), time.monotonic()
        ran = subprocess.run(
            program,
            cwd=self.checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        after, ended = os.times(), time.monotonic()
        recap = [line for line in ran.stdout.splitlines() if " changed=" in line]
        if ran.returncode or not recap or any(" changed=0 " not in line for line in recap):
            raise SystemExit(f"{self.name}: {name} failed, or has changed something:\n{ran.stdout}")
        if counts:
            self.seconds[name].append(ended - began)
            used = [after[place] - before[place] for place in (2, 3)]  # of children, as user and as system
            self.processor_seconds[name].append(sum(used))


def table(revisions: Sequence[Revision]) -> str:
    """The medians, and their ratio to those of the last revision."""
    last = revisions[-1]
    lines = ["| run | revision | seconds | ratio | processor seconds | ratio |", "|---|---|---|---|---|---|"]
    for run, one in product(RUNS, revisions):
        cells = []
        for of in ("seconds", "processor_seconds"):
            own, others = (statistics.median(getattr(some, of)[run]) for some in (one, last))
            cells += [f"{own:.1f}", f"{own / others:.2f}"]
        lines.append(f"| {run} | {one.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.site", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", required=True, help="the other revision")
    parser.add_argument("--boards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with worktree(options.against) as tree:
        revisions = (Revision("this", CHECKOUT), Revision(options.against, tree))
        try:
            for one in revisions:
                one.provision(options.boards)
            for turn in range(options.rounds + 1):  # the first one fills caches
                for name, one in product(RUNS, revisions):
                    one.run(name, counts=turn > 0)
        finally:
            for one in revisions:
                one.remove()
    load = os.getloadavg()[0]
    sys.stdout.write(
        f"{options.boards} boards, load {load:.1f} on {os.cpu_count()} CPUs\n{table(revisions)}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
