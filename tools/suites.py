# SPDX-License-Identifier: Apache-2.0
"""The suites of tests that make targets run, and what is known of their last runs on a commit.

A run of `pytest --suite=NAME` writes lines in JSON, complete up to the line where the run was ended. A second
run on the same commit adds to them, so a suite that takes hours can be run in parts.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SUITES = {
    "unit": "not lab and not acceptance",
    "lab": "lab and not acceptance and not arm64",
    "acceptance": "acceptance",
    "arm64": "arm64",
}
"""Marker expressions by name. `make unit`, `make test`, `make acceptance`, `make acceptance-arm64`."""
RECORDS = Path(".cache/tests")
"""Below a checkout."""


@dataclass
class Ran:
    """What ran of a suite on one commit."""

    commit: str
    tests: int = 0
    """In the complete suite; 0 if only parts of it ran."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """The last one of each test: `passed`, `failed` or `skipped`."""
    failed_before: set[str] = field(default_factory=set)
    """Tests that failed in one run and passed in a later one."""

    def add(self, line: Mapping[str, str | int]) -> None:
        """Take one line of a record."""
        if "tests" in line:
            self.tests = max(self.tests, int(line["tests"]))
        if "id" in line:
            name, outcome = str(line["id"]), str(line["outcome"])
            if self.outcomes.get(name) == "failed" and outcome == "passed":
                self.failed_before.add(name)
            self.outcomes[name] = outcome

    @property
    def is_green(self) -> bool:
        """Whether every test of the suite has run and none failed."""
        return 0 < self.tests <= len(self.outcomes) and "failed" not in self.outcomes.values()

    def __str__(self) -> str:
        """Return the numbers, as `3 of 4 tests: 2 passed, 1 failed`."""
        found = list(self.outcomes.values())
        parts = [
            f"{found.count(outcome):,} {outcome}"
            for outcome in ("passed", "failed", "skipped")
            if outcome in found
        ]
        again = f" ({len(self.failed_before)} of them in a second run)" if self.failed_before else ""
        total = f" of {self.tests:,}" if self.tests != len(found) else ""
        return f"{len(found):,}{total} tests: {', '.join(parts)}{again}"


def record(checkout: Path, suite: str) -> Path:
    """Return the file with what ran of a suite."""
    return checkout / RECORDS / f"{suite}.jsonl"


def parsed(lines: Iterable[str]) -> Ran | None:
    """Return what a record says; None for an empty one. A last line that was cut off does not count."""
    ran = None
    for line in lines:
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if "commit" in one:
            ran = ran if ran and ran.commit == one["commit"] else Ran(one["commit"])
        if ran:
            ran.add(one)
    return ran


def read(checkout: Path, suite: str) -> Ran | None:
    """Return what ran of a suite in this checkout on the last commit that it ran on; None if nothing did."""
    path = record(checkout, suite)
    return parsed(path.read_text().splitlines()) if path.exists() else None
