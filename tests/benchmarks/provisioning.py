# SPDX-License-Identifier: Apache-2.0
"""Time the second, unchanged run of site.yml over virtual boards: `python -m tests.benchmarks.provisioning`.

One lab has as many boards as the largest count asks for; smaller counts are runs with `--limit`, while
the other boards idle.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import lab
from tools.process import say

LAB = "benchmark"
FORKS = 25  # ansible.cfg's
MOST_ROUNDS = 15  # the aim, verification apart
CALLBACKS = Path(__file__).with_name("callback")


@dataclass(frozen=True)
class Result:
    """One run: its seconds before and in verification, and the rounds of the host that has most of them."""

    boards: int
    forks: int
    rounds: int
    verification_rounds: int
    tasks: int
    provisioning_seconds: float
    verification_seconds: float

    @property
    def seconds(self) -> float:
        """Wall clock of the run."""
        return self.provisioning_seconds + self.verification_seconds


@contextmanager
def rounds_counted() -> Iterator[Path]:
    """Have a run of Ansible inside count its rounds; gives the file where they are afterwards."""
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-rounds-") as directory:
        report = Path(directory, "rounds.json")
        os.environ |= {
            "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS),
            "ANSIBLE_CALLBACKS_ENABLED": "rounds",
            "ROUNDS_FILE": str(report),
        }
        yield report


def counted(boards: int, forks: int) -> Result:
    """Run site.yml again over the first `boards` boards; SystemExit when that changes anything."""
    with rounds_counted() as report:
        limit = ",".join(f"jetson-{number}" for number in range(1, boards + 1))
        run = run_playbook(LAB, "site.yml", f"--limit={limit}", f"--forks={forks}")
        check(run)
        if any(recap.changed for recap in run.recap.values()):
            raise SystemExit(f"the unchanged run changed something\n{run.output}")
        counts = json.loads(report.read_text())

    def most(key: str) -> int:
        return max(int(host.get(key, 0)) for host in counts["hosts"].values())

    return Result(
        boards=boards,
        forks=forks,
        rounds=most("provisioning_rounds"),
        verification_rounds=most("verification_rounds"),
        tasks=most("provisioning_tasks"),
        provisioning_seconds=counts["provisioning_seconds"],
        verification_seconds=counts["verification_seconds"],
    )


def check(run: PlaybookRun) -> None:
    """SystemExit with its output when a run has failed."""
    if run.returncode != 0:
        raise SystemExit(f"site.yml failed\n{run.output}")


def table(results: Sequence[Result]) -> str:
    """Give one line per run."""
    lines = [
        "boards forks  rounds (+verify)  tasks  seconds = provision + verify  provision/board  total/board"
    ]
    for one in results:
        verdict = "" if one.rounds <= MOST_ROUNDS else f"  MISSED: at most {MOST_ROUNDS} rounds"
        lines.append(
            f"{one.boards:>6} {one.forks:>5} {one.rounds:>7} {f'(+{one.verification_rounds})':>9}"
            f" {one.tasks:>6} {one.seconds:>8.1f} = {one.provisioning_seconds:>9.1f} + "
            f"{one.verification_seconds:>6.1f} {one.provisioning_seconds / one.boards:>16.1f}"
            f" {one.seconds / one.boards:>12.1f}{verdict}"
        )
    return "\n".join(lines)


def main() -> int:
    """Bring the lab up, provision once, time the runs after it, take the lab down."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.provisioning", description=__doc__)
    parser.add_argument("--boards", default="1,3,6", help="counts of boards (default: 1,3,6)")
    options = parser.parse_args()
    counts = sorted(int(count) for count in options.boards.split(","))
    with lab.fresh(LAB, (lab.DEFAULT_TYPE,) * counts[-1]):
        say(f"benchmark: first run of site.yml over {counts[-1]} board(s)")
        check(run_playbook(LAB, "site.yml"))
        # The largest once more with a single fork, to see what the forks are worth.
        runs = [(count, FORKS) for count in counts] + [(counts[-1], 1)]
        results = [counted(count, forks) for count, forks in runs]
    load = os.getloadavg()[0]
    sys.stdout.write(f"virtual boards, load {load:.1f} on {os.cpu_count()} CPUs\n{table(results)}\n")
    return 0 if all(one.rounds <= MOST_ROUNDS for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
