# SPDX-License-Identifier: Apache-2.0
"""Time site.yml on boards that it has provisioned already, of this checkout and of another revision in turns.

Each revision provisions virtual boards of its own, by its own `make demo`. A run leaves out the verification,
and must change nothing. The table has medians: seconds, and the controller's processor time.
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
from pathlib import Path

from tests.worktree import worktree
from tools.cache import CHECKOUT
from tools.process import say

LAB = "speed-{}"


@dataclass(frozen=True)
class Revision:
    """A checkout, its lab, and what its runs took."""

    name: str
    checkout: Path
    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)

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

    def run(self, *, counts: bool) -> None:
        """Run site.yml once."""
        program = [".venv/bin/ansible-playbook", "-i", f".lab/{self.lab}/inventory.ini", "playbooks/site.yml"]
        environment = os.environ | {"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
        before, began = os.times(), time.monotonic()
        ran = subprocess.run(
            [*program, "--skip-tags=gpu_verify"],
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
            raise SystemExit(f"{self.name}: site.yml failed, or has changed something:\n{ran.stdout}")
        if counts:
            self.seconds.append(ended - began)
            used = [after[place] - before[place] for place in (2, 3)]  # of children, as user and as system
            self.processor_seconds.append(sum(used))


def table(revisions: Sequence[Revision]) -> str:
    """The medians, and their ratio to those of the last revision."""
    last = revisions[-1]
    lines = ["| revision | seconds | ratio | processor seconds | ratio |", "|---|---|---|---|---|"]
    for one in revisions:
        cells = []
        for of in ("seconds", "processor_seconds"):
            own, others = statistics.median(getattr(one, of)), statistics.median(getattr(last, of))
            cells += [f"{own:.1f}", f"{own / others:.2f}"]
        lines.append(f"| {one.name} | {' | '.join(cells)} |")
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
                for one in revisions:
                    one.run(counts=turn > 0)
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
