# SPDX-License-Identifier: Apache-2.0
"""Put small faults into the plugin or the roles' modules, one at a time, and see whether a test fails."""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutation import mutants
from tests.mutation.mutants import Mutant
from tests.mutation.related import PACKAGE, distances

CHECKOUT = Path(__file__).parents[2]
PLUGIN, ROLES = Path("plugin"), Path("roles")
FOLDERS = ("tests/unit/plugin", "tests/unit", "tests/observability", "tests/reports")
NOT_COPIED = (".*", "*.egg-info", "__pycache__")
RESULTS = ("build", "dist", "reports")
"""What commands write into the checkout."""

SAMPLE = 150
"""Faults in all: up to 50 minutes on two cores that do nothing else."""
SEED = "1"
FLOOR = 85
"""Percent of the faults that the tests have to notice. Some of the others have no effect."""

TEST_SECONDS = 30
FAULT_SECONDS = 300
"""A test, and all tests of one fault: one that makes the plugin hang is noticed then."""

# Where a running process shows more than the unit tests, and the tests of such a process.
RUNS = {
    ("commands/daemons.py", "dra/", "kubelet/driver_conflict.py"): (
        "conformance/test_dra_claims.py",
        "conformance/test_dra_slices.py",
        "conformance/test_driver_conflict.py",
    ),
    (
        *("__main__.py", "boardwatch.py", "cli.py", "commands/", "kubelet/", "plugin.py", "service.py"),
        *("sharing/", "system/directorywatch.py", "system/waiting.py"),
    ): (
        "conformance/test_allocation.py",
        "conformance/test_changes.py",
        "conformance/test_registration.py",
        "conformance/test_units.py",
    ),
    ("commands/common.py", "commands/cuda_programs.py", "cuda/"): (
        "gpu_limit/test_allocate.py",
        "gpu_limit/test_compute.py",
    ),
}
# Too slow for a fault of one line; and tests that the confinement does not allow.
LEFT_OUT = (
    "conformance/test_dra_claims.py::test_two_hundred_claims_leave_nothing",
    "conformance/test_registration.py::test_a_thousand_restarts_cost_no_thread_no_descriptor_and_no_memory",
    "unit/plugin/test_cdi.py::test_version_0_7_has_the_groups_that_may_open_the_nodes",
    "unit/test_atomic_files.py::test_owners_mode_of_daemon_json_stays_and_his_link_to_it",
)

PYTEST = (
    *("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--basetemp=tmp/pytest"),
    f"--timeout={TEST_SECONDS}",
    *(f"--deselect=tests/{test}" for test in LEFT_OUT),
)

# No process is left. Everything but /tmp is read-only, and the checkout also below /tmp: a fault may be in
# the path that the plugin writes to.
# With what is mounted below /tmp: the kernel refuses to leave out what another user namespace has mounted.
# What the tests write is in memory: boards are trees of many small files.
NAMESPACE = "unshare --user --map-root-user --mount --pid --fork --kill-child --mount-proc"
CONFINED = """
mount --rbind /tmp /tmp
mount -o remount,bind,ro /
mount --bind "$2" "$2"
mount -o remount,bind,ro "$2"
mkdir -p "$1/tmp"
mount -t tmpfs tmpfs "$1/tmp"
cd "$1"
shift 2
exec "$@"
"""
CONFINEMENT = (*NAMESPACE.split(), "sh", "-ec", CONFINED, "sh")
PLACES = {
    "PYTHONPATH": str(PLUGIN),
    "HOME": "",
    "TMPDIR": "tmp",
    "JETSON_K3S_CACHE": "cache",
    "ANSIBLE_REMOTE_TMP": "tmp/ansible",  # by default below the home directory of /etc/passwd
}
"""Of the tests, below the copy."""


PARALLEL = 2 * (os.cpu_count() or 1)
"""Runs of tests: those of running processes wait most of the time."""


class Runner:
    """Runs tests on copies of the checkout: each run that goes on has its own."""

    def __init__(self, scratch: Path) -> None:
        self._copies = SimpleQueue[Path]()
        self._times = itertools.count(1)
        for number in range(PARALLEL):
            copy = scratch / str(number)
            shutil.copytree(CHECKOUT, copy, ignore=_not_copied, symlinks=True)
            self._copies.put(copy)

    def check(self, tests: Sequence[str]) -> None:
        shares = [share for start in range(PARALLEL) if (share := tests[start::PARALLEL])]
        with ThreadPoolExecutor(PARALLEL) as threads:
            for passed, said in threads.map(lambda share: self._run(share, seconds=None), shares):
                if not passed:
                    raise SystemExit(f"{said}\nerror: the tests fail without any fault in the plugin")

    def notices(self, mutant: Mutant, tests: Sequence[str]) -> bool:
        return bool(tests) and not self._run(tests, FAULT_SECONDS, mutant)[0]

    def _run(
        self, tests: Sequence[str], seconds: float | None, mutant: Mutant | None = None
    ) -> tuple[bool, str]:
        """Run tests on a copy, with a fault in it or without; give whether they pass, and their output."""
        copy = self._copies.get()
        try:
            if mutant:
                self._write(copy / mutant.path, mutant.code)
            ran = subprocess.run(
                [*CONFINEMENT, str(copy), str(CHECKOUT), sys.executable, *PYTEST, *tests],
                env=os.environ | {name: str(copy / place) for name, place in PLACES.items()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return False, str(error)
        finally:
            if mutant:
                self._write(copy / mutant.path, mutant.original)
            self._copies.put(copy)
        return ran.returncode == 0, ran.stdout

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        # Python compiles a module again when its size or its time, in seconds, is another one.
        moment = next(self._times)
        os.utime(file, (moment, moment))


def _not_copied(directory: str, names: list[str]) -> set[str]:
    patterns = (*NOT_COPIED, *RESULTS) if Path(directory) == CHECKOUT else NOT_COPIED
    return shutil.ignore_patterns(*patterns)(directory, names)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="faults in all (default: %(default)s)")
    parser.add_argument("--roles", action="store_true", help="modules of the roles instead of the plugin's")
    parser.add_argument("only", nargs="*", default=[""], help="modules or folders, as in `kubelet/ cli.py`")
    options = parser.parse_args()
    chosen = choose(options.sample, tuple(options.only), roles=options.roles)
    related = related_tests({mutant.path for mutant in chosen})
    with tempfile.TemporaryDirectory(prefix="mutants-", dir="/tmp") as scratch:
        runner = Runner(Path(scratch))
        runner.check(list(dict.fromkeys(itertools.chain(*related.values()))))
        with ThreadPoolExecutor(PARALLEL) as threads:
            noticed = list(
                threads.map(lambda mutant: told(mutant, runner.notices(mutant, related[mutant.path])), chosen)
            )
    return report(chosen, noticed)


def modules(roles: bool) -> list[Path]:
    patterns = [f"roles/*/{kind}/*.py" for kind in ("library", "module_utils")]
    found = [
        path for one in (patterns if roles else [f"plugin/{PACKAGE}/**/*.py"]) for path in CHECKOUT.glob(one)
    ]
    return sorted(path.relative_to(CHECKOUT) for path in found if not path.name.endswith("_pb2.py"))


def choose(number: int, only: tuple[str, ...], *, roles: bool = False) -> list[Mutant]:
    """Choose faults of all modules, by their share of the lines that can have one.

    Of the plugin's, each has one at least.
    """
    paths = [path for path in modules(roles) if short(path).startswith(only)]
    faults = {path: mutants.of_module(path, (CHECKOUT / path).read_text()) for path in paths}
    lines = {path: len({mutant.line for mutant in found}) for path, found in faults.items()}
    share = number / sum(lines.values())
    return [
        mutant
        for path, found in faults.items()
        for mutant in mutants.sample(found, max(int(not roles), round(lines[path] * share)), f"{SEED} {path}")
    ]


def related_tests(modules: set[Path]) -> dict[Path, list[str]]:
    """Give the tests that can notice a fault in a module, the most likely ones first."""
    reached = {
        test.relative_to(CHECKOUT): distances(test, CHECKOUT)
        for folder in FOLDERS
        for test in sorted((CHECKOUT / folder).rglob("test_*.py"))
    }
    found = {}
    for module in modules:
        distance = {test: far[CHECKOUT / module] for test, far in reached.items() if CHECKOUT / module in far}
        unit = sorted(distance, key=lambda test: (module.stem not in test.stem, distance[test]))
        found[module] = [*map(str, unit), *runs(module)]
    return found


def runs(module: Path) -> list[str]:
    """Give the tests of running processes that can notice a fault in a module."""
    chosen = [files for modules, files in RUNS.items() if short(module).startswith(modules)]
    return [f"tests/{file}" for file in itertools.chain(*chosen)]


def short(path: Path) -> str:
    return str(path.relative_to(ROLES if path.is_relative_to(ROLES) else PLUGIN / PACKAGE))


def told(mutant: Mutant, noticed: bool) -> bool:
    sys.stdout.write(f"{'noticed ' if noticed else 'SURVIVED'} {short(mutant.path)}:{mutant.line}\n")
    sys.stdout.flush()
    return noticed


def report(chosen: Sequence[Mutant], noticed: Sequence[bool]) -> int:
    """Print the survivors, and how many were noticed of each module and of all; return the exit code."""
    survivors = [mutant for mutant, seen in zip(chosen, noticed, strict=True) if not seen]
    say = sys.stdout.write
    for mutant in survivors:
        say(f"\n{short(mutant.path)}:{mutant.line}\n{mutant.diff()}\n")
    say("\n")
    for path, of_module in itertools.groupby(zip(chosen, noticed, strict=True), lambda one: one[0].path):
        seen = [one for _, one in of_module]
        say(f"{sum(seen):4} of {len(seen):3}  {short(path)}\n")
    score = 100 * sum(noticed) / len(noticed)
    say(f"{sum(noticed):4} of {len(noticed):3}  = {score:.1f} %, at least {FLOOR} % are required\n")
    return int(score < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
