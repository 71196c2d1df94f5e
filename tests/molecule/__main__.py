# SPDX-License-Identifier: Apache-2.0
"""Run a Molecule scenario: `python -m tests.molecule single`. Exit status: Molecule's own; 2 wrong usage."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cache import CHECKOUT

HERE = Path(__file__).parent
# The first has a virtual board of its own, the second the boards of an inventory that its user gives.
SCENARIOS = SINGLE, HARDWARE = ("single", "hardware")
STEPS = ("test", "create", "converge", "verify", "destroy")


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m tests.molecule",
        description="Run a Molecule scenario, or one step of it.",
        epilog="tests/molecule/README.md says what each scenario proves.",
    )
    result.add_argument("scenario", choices=SCENARIOS)
    result.add_argument("step", nargs="?", choices=STEPS, default="test", help="default: test, all of them")
    result.add_argument(
        "--keep", action="store_true", help="leave the boards as they are at the end of a test"
    )
    result.add_argument(
        "--inventory", type=Path, metavar="FILE", help=f"the boards of the scenario {HARDWARE!r}, provisioned"
    )
    return result


def commands(arguments: argparse.Namespace) -> list[list[str]]:
    """Return Molecule's command lines.

    A test whose boards are kept is told not to destroy, which Molecule takes to heart at its beginning too:
    without a destroy before it, boards that are long gone would count as created, and nothing be tested.
    """
    molecule = str(Path(sys.executable).with_name("molecule"))
    name = f"--scenario-name={arguments.scenario}"
    if arguments.keep:
        return [[molecule, "destroy", name], [molecule, arguments.step, name, "--destroy=never"]]
    return [[molecule, arguments.step, name]]


def environment(inventory: Path | None) -> dict[str, str]:
    # Molecule starts ansible-playbook by its bare name.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"INVENTORY": str(inventory.absolute())} if inventory else {}
    return {"MOLECULE_GLOB": f"{HERE.relative_to(CHECKOUT)}/*/molecule.yml", "PATH": path, **given}


def main(argv: Sequence[str] | None = None) -> int:
    options = parser()
    arguments = options.parse_args(argv)
    if (arguments.scenario == HARDWARE) != (arguments.inventory is not None):
        options.error(f"the scenario {HARDWARE!r} alone needs --inventory FILE: provisioned boards")
    if arguments.step != "test" and (arguments.keep or arguments.scenario == HARDWARE):
        options.error(f"--keep and the scenario {HARDWARE!r} know the whole test only, no single step")
    if arguments.inventory is not None and not arguments.inventory.exists():
        options.error(f"there is no inventory {arguments.inventory}")
    added = environment(arguments.inventory)
    for command in commands(arguments):
        status = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **added}, check=False).returncode
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
