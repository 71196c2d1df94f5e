# SPDX-License-Identifier: Apache-2.0
"""What many boards cost the one server that they lean on: `python -m tests.benchmarks.delegation`.

Light boards (tests/acceptance/light_boards.py) all do at once what site.yml delegates for each of them, with
the roles' bound and without one, alternating in one run.
"""

import argparse
import json
import os
import sys

from tests.acceptance import light_boards
from tests.acceptance.light_boards import Fleet
from tests.benchmarks.provisioning import rounds_counted
from tools.process import say

BOUNDS = {"the roles' bound": "", "no bound": "--extra-vars=k3s_server_tasks_at_once=0"}


def row(fleet: Fleet, count: int, bound: str) -> str:
    """One run, as a line. Boards may fail: that is what too much at once comes to."""
    with rounds_counted() as report:
        run, peak = fleet.run(count, *filter(None, [BOUNDS[bound]]))
        counts = json.loads(report.read_text())
    rounds = max(int(host["provisioning_rounds"]) for host in counts["hosts"].values())
    failed = sum(recap.failed + recap.unreachable > 0 for recap in run.recap.values())
    return (
        f"{count:>6}  {bound:<16} {rounds:>6} {counts['provisioning_seconds']:>8.1f}"
        f" {peak.tasks:>13} {peak.mebibytes:>10} {failed:>7}"
    )


def main() -> int:
    """Bring the fleet up, time the runs, take it down."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.delegation", description=__doc__)
    parser.add_argument("--boards", default="10,25,50", help="counts, 50 at most (default: 10,25,50)")
    options = parser.parse_args()
    lines = ["boards  bound            rounds  seconds  tasks at once  peak MiB  failed"]
    with light_boards.fleet("delegation") as fleet:
        for count in map(int, options.boards.split(",")):
            for bound in BOUNDS:
                say(f"benchmark: {count} boards, {bound}")
                lines.append(row(fleet, count, bound))
    text = "\n".join(lines)
    sys.stdout.write(f"light boards, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
