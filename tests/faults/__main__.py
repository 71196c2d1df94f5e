# SPDX-License-Identifier: Apache-2.0
"""Apply each fault in a worktree of HEAD, run its tests there, and list the faults that no test noticed."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults import Fault, load
from tests.worktree import worktree
from tools.cache import CHECKOUT
from tools.process import say

PASSED, FAILED = 0, 1
"""pytest's exit statuses."""


def pytest(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests in the tree; return pytest's exit status, and its line about the first test that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not lab", *tests]
    ran = subprocess.run(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    failed = (line.removeprefix("FAILED ") for line in ran.stdout.splitlines() if line.startswith("FAILED "))
    return ran.returncode, next(failed, "")


def noticed_by(tree: Path, fault: Fault) -> str:
    """The first of the fault's tests that fails by it, '' without one."""
    path = tree / fault.file
    right = path.read_text()
    path.write_text(fault.applied(tree))
    try:
        status, failed = pytest(tree, fault.tests)
    finally:
        path.write_text(right)
    return failed if status == FAILED else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="regular expressions: only faults whose name has one")
    wanted = parser.parse_args().names
    faults = [one for one in load() if not wanted or any(re.search(name, one.name) for name in wanted)]
    noticed = 0
    with worktree("HEAD") as tree:
        (tree / ".venv").symlink_to(CHECKOUT / ".venv")
        for tests in dict.fromkeys(one.tests for one in faults):
            status, failed = pytest(tree, tests)
            if status != PASSED:
                say(f"without a fault, these tests do not pass: {' '.join(tests)}: {failed}")
                return 2
        for fault in faults:
            test = noticed_by(tree, fault)
            noticed += bool(test)
            sys.stdout.write(f"{'noticed' if test else 'NOT NOTICED'}: {fault.name} ({fault.file})\n")
            sys.stdout.write(f"    {test}\n" if test else "")
            sys.stdout.flush()
    sys.stdout.write(f"{noticed} of {len(faults)} noticed\n")
    return 0 if noticed == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
