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
PLUGIN = Path("plugin")
ROLES = Path("roles")
FOLDERS = ("tests/unit/plugin", "tests/unit", "tests/observability")
NOT_COPIED = (".*", "*.egg-info", "__pycache__")
RESULTS = ("build", "dist", "reports")
"""What commands write into the checkout."""

SAMPLE = 150
"""Faults in all: up to 40 minutes on two cores that do nothing else."""
SEED = "1"
FLOOR = 85
"""Percent of the faults that the tests have to notice. Some of the others have no effect."""

TEST_SECONDS = 30
FAULT_SECONDS = 300
"""A test, and all tests of one fault: one that makes the plugin hang is noticed then."""

# Where a running plugin shows more than the unit tests, and what it is put through: the fastest tests of each
# kind of trouble.
RUNS = (
    *(
        "__main__.py",
        "boardwatch.py",
        "cli.py",
        "commands/",
        "config/watch.py",
        "daemon.py",
        "kubelet/",
        "sharing/",
    ),
    *("signals.py", "system/directorywatch.py", "system/waiting.py"),
)
CASES = {
    "conformance/test_allocation.py": ("",),
    "conformance/test_changes.py": (
        "test_a_gpu_that_dies_and_comes_back_is_told_to_every_stream",
        "test_no_gpu_no_resource",
        "test_a_changed_file_is_taken_over_and_a_bad_one_is_not",
        "test_a_config_map_is_swapped",
        "test_sighup_reads_the_file_again_and_other_places_begin_anew",
    ),
    "conformance/test_registration.py": (
        "test_registers_with_a_name_a_version_and_options_the_kubelet_accepts[1.37]",
        "test_registers_again_after_each_kubelet_restart[1.37]",
        "test_kubelet_socket_that_appears_after_the_plugin[1.37]",
        "test_kubelet_socket_that_refuses_at_first",
        "test_own_socket_deleted[1.37]",
        "test_directory_wiped_while_the_kubelet_restarts[1.37]",
        "test_ends_when_its_directory_is_deleted_under_the_mount[1.37]",
        "test_an_unrelated_file_is_no_reason_to_register[1.37]",
        "test_refused_registrations_leave_no_connection[1.37]",
        "test_a_kubelet_that_hangs_in_register_delays_neither_its_successor_nor_the_end[1.37]",
        "test_a_kubelet_that_answers_but_never_dials_is_asked_again[1.20]",
        "test_a_stream_cut_without_a_restart[1.26]",
        "test_a_new_instance_takes_over_from_an_old_one[1.26]",
        "test_two_instances_do_not_fight_over_the_resource[1.20]",
        "test_what_a_killed_instance_leaves_behind_is_cleared[1.37]",
    ),
    "conformance/test_units.py": (
        "test_a_container_that_asks_for_both_gets_one_gpu_and_its_limit[1.37]",
        "test_each_start_of_a_container_has_its_ledger_in_the_same_file[1.37]",
        "test_without_a_library_that_works_memory_is_unhealthy_for_that_reason_until_there_is_one[1.37]",
        "test_replicas_become_units_and_replicas_again_under_running_pods[1.37]",
        "test_a_resource_that_begins_to_act_at_starts_tells_the_kubelet[1.26]",
        "test_one_resources_fault_is_not_the_others[1.37]",
        "test_a_gpu_without_memory_would_be_all_of_it_and_does_not_start[1.37]",
    ),
}
DRA_RUNS = ("commands/dra.py", "dra/", "kubelet/driver_conflict.py")
DRA_CASES = {
    "conformance/test_dra_claims.py": (
        "test_a_claim_s_life",
        "test_what_cannot_be_prepared_has_its_reason",
        "test_only_a_claim_that_exists_keeps_its_gpu",
        "test_never_beside_the_device_plugin",
        "test_files_that_are_wiped_come_back_without_a_call",
        "test_sockets_that_are_removed_are_made_again",
        "test_a_kubelet_that_starts_again_finds_the_driver",
        "test_sigterm_ends_it",
    ),
    "conformance/test_dra_slices.py": ("",),
    "conformance/test_driver_conflict.py": ("",),
}
CUDA_RUNS = ("commands/allocate.py", "commands/common.py", "commands/compute.py", "cuda/")
CUDA_CASES = {
    "gpu_limit/test_allocate.py": ("",),
    "gpu_limit/test_compute.py": ("test_numbers_come_back_right", "test_a_fault_is_noticed"),
}
# Too slow for what it tells of a line; and what the confinement does not allow.
LEFT_OUT = (
    "unit/plugin/test_cdi.py::test_version_0_7_has_the_groups_that_may_open_the_nodes",
    "unit/plugin/test_damaged_boards.py",
    "unit/test_atomic_files.py::test_modules_of_the_role_k3s_find_it",
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
PLACES = {"PYTHONPATH": str(PLUGIN), "HOME": "", "TMPDIR": "tmp", "JETSON_K3S_CACHE": "cache"}
"""Of the tests, below the copy."""


AT_ONCE = 2 * (os.cpu_count() or 1)
"""Runs of tests: those of running processes wait most of the time."""


class Judge:
    """Runs tests on copies of the checkout: each run that goes on has its own."""

    def __init__(self, scratch: Path) -> None:
        self._copies = SimpleQueue[Path]()
        self._times = itertools.count(1)
        for number in range(AT_ONCE):
            copy = scratch / str(number)
            shutil.copytree(CHECKOUT, copy, ignore=_not_copied, symlinks=True)
            self._copies.put(copy)

    def check(self, tests: Sequence[str]) -> None:
        shares = [share for start in range(AT_ONCE) if (share := tests[start::AT_ONCE])]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for passed, said in threads.map(self._check, shares):
                if not passed:
                    raise SystemExit(f"{said}\nerror: the tests fail without any fault in the plugin")

    def _check(self, tests: Sequence[str]) -> tuple[bool, str]:
        copy = self._copies.get()
        try:
            return self._run(copy, tests, seconds=None)
        finally:
            self._copies.put(copy)

    def notices(self, mutant: Mutant, tests: Sequence[str]) -> bool:
        copy = self._copies.get()
        file = copy / mutant.path
        try:
            self._write(file, mutant.code)
            return bool(tests) and not self._run(copy, tests)[0]
        finally:
            self._write(file, mutant.original)
            self._copies.put(copy)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        # Python compiles a module again when its time is another one, in whole seconds, or its size.
        moment = next(self._times)
        os.utime(file, (moment, moment))

    def _run(
        self, copy: Path, tests: Sequence[str], seconds: float | None = FAULT_SECONDS
    ) -> tuple[bool, str]:
        confined = [*NAMESPACE.split(), "sh", "-ec", CONFINED, "sh", str(copy), str(CHECKOUT)]
        try:
            ran = subprocess.run(
                [*confined, sys.executable, *PYTEST, *tests],
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
        return ran.returncode == 0, ran.stdout


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
        judge = Judge(Path(scratch))
        judge.check(list(dict.fromkeys(itertools.chain(*related.values()))))
        with ThreadPoolExecutor(AT_ONCE) as threads:
            noticed = list(
                threads.map(lambda mutant: told(mutant, judge.notices(mutant, related[mutant.path])), chosen)
            )
    return report(chosen, noticed)


def modules(roles: bool) -> list[Path]:
    if roles:
        found = [
            path for kind in ("library", "module_utils") for path in (CHECKOUT / ROLES).glob(f"*/{kind}/*.py")
        ]
    else:
        found = list((CHECKOUT / PLUGIN / PACKAGE).rglob("*.py"))
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
    chosen = [
        cases
        for prefixes, cases in ((DRA_RUNS, DRA_CASES), (RUNS, CASES), (CUDA_RUNS, CUDA_CASES))
        if short(module).startswith(prefixes)
    ]
    return [
        f"tests/{file}" + f"::{name}" * bool(name)
        for cases in chosen
        for file, names in cases.items()
        for name in names
    ]


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
    say(f"{sum(noticed):4} of {len(noticed):3}  = {score:.1f} %, at least {FLOOR} % are asked for\n")
    return int(score < FLOOR)


if __name__ == "__main__":
    sys.exit(main())
