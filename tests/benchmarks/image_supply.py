# SPDX-License-Identifier: Apache-2.0
"""Measure what one plugin update sends over the controller's link: `python -m tests.benchmarks.image_supply`.

Once with a board that supplies images to the others, and once with each board's from the controller. In one
lab, one after the other. Every run has its own traffic besides: modules, facts, answers.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.acceptance.playbook import run_playbook
from tests.acceptance.site_link import Brought, bring_plugin, bring_registry, crossed
from tests.lab import lab
from tools.process import say

LAB = "benchmark-supply"
SUPPLY = "jetson-2"
SUPPLIED = f"--extra-vars=image_supply_host={SUPPLY}"


@dataclass(frozen=True)
class Result:
    """One run of site.yml: what crossed the link, both ways, and how long it took."""

    what: str
    size: int
    seconds: float


def measured(what: str, *arguments: str) -> Result:
    """Run site.yml up to the plugin; SystemExit when that fails."""
    say(f"benchmark: {what}")
    before, start = crossed(LAB), time.monotonic()
    run = run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify", *arguments)
    if run.returncode != 0:
        raise SystemExit(f"site.yml failed\n{run.why}")
    if "did not supply" in run.output:
        raise SystemExit(f"a board did not get its image from {SUPPLY}\n{run.output}")
    return Result(what, crossed(LAB) - before, time.monotonic() - start)


def table(boards: int, plugin: Brought, results: Sequence[Result]) -> str:
    """Give one line per run."""
    width = max(len(one.what) for one in results)
    lines = [f"{boards} boards, the plugin's archive has {plugin.size / 1e6:.1f} MB"]
    lines += [f"{one.what:<{width}} {one.size / 1e6:>8.1f} MB {one.seconds:>6.0f} s" for one in results]
    return "\n".join(lines)


def main() -> int:
    """Bring the lab up, measure, take it down."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.image_supply", description=__doc__)
    parser.add_argument("--boards", type=int, default=6, help="how many boards (default: 6)")
    options = parser.parse_args()
    with lab.fresh(LAB, (lab.DEFAULT_TYPE,) * options.boards):
        bring_registry(LAB, jetpack=6)
        results = [measured(f"first run, {SUPPLY} supplies", SUPPLIED)]
        bring_plugin(LAB, "supplied")
        results.append(measured(f"another plugin, {SUPPLY} supplies", SUPPLIED))
        plugin = bring_plugin(LAB, "everywhere")
        results.append(measured("another plugin, the controller supplies"))
    sys.stdout.write(f"{table(options.boards, plugin, results)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
