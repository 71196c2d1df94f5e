# SPDX-License-Identifier: Apache-2.0
"""Apply each fault in a worktree of HEAD, run its tests there, and list the faults that no test noticed."""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults import Fault, load
from tools.cache import CHECKOUT
from tools.process import run, say

PASSED, FAILED = 0, 1
"""pytest's exit statuses."""


@contextmanager
def worktree() -> Iterator[Path]:
    """Yield a copy of the last commit with this checkout's environment; it goes at the end."""
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-faults-") as place:
        tree = Path(place, "checkout")
        run(["git", "worktree", "add", "--detach", tree, "HEAD"], cwd=CHECKOUT)
        try:
            (tree / ".venv").symlink_to(CHECKOUT / ".venv")
            yield tree
        finally:
            run(["git", "worktree", "remove", "--force", tree], cwd=CHECKOUT)


def pytest(tree: Path, tests: Sequence[str]) -> int:
    """Run tests in the tree; return pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not lab", *tests]
    return subprocess.run(
        command, cwd=tree, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


def is_noticed(tree: Path, fault: Fault) -> bool:
    """Whether the fault's tests fail by it."""
    path = tree / fault.file
    right = path.read_text()
    path.write_text(fault.applied(tree))
    try:
        return pytest(tree, fault.tests) == FAILED
    finally:
        path.write_text(right)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="regular expressions: only faults whose name has one")
    wanted = parser.parse_args().names
    faults = [one for one in load() if not wanted or any(re.search(name, one.name) for name in wanted)]
    noticed = 0
    with worktree() as tree:
        for tests in dict.fromkeys(one.tests for one in faults):
            if pytest(tree, tests) != PASSED:
                say(f"without a fault, these tests do not pass: {' '.join(tests)}")
                return 2
        for fault in faults:
            found = is_noticed(tree, fault)
            noticed += found
            sys.stdout.write(f"{'noticed' if found else 'NOT NOTICED'}: {fault.name} ({fault.file})\n")
            sys.stdout.flush()
    sys.stdout.write(f"{noticed} of {len(faults)} noticed\n")
    return 0 if noticed == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
