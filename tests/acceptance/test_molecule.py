# SPDX-License-Identifier: Apache-2.0
"""The Molecule scenarios, run as their users run them. Each has a lab of its own."""

import os
import sys
from pathlib import Path

import pytest

from tests.acceptance.command import run_here
from tests.lab import engine, lab
from tests.lab.paths import CHECKOUT

pytestmark = pytest.mark.lab

FOUND = {path.parent.name for path in (CHECKOUT / "tests/molecule").glob("*/molecule.yml")}
SINGLE = "single"
LONG = [pytest.param(name, marks=pytest.mark.fleet) for name in sorted(FOUND - {SINGLE})]


@pytest.mark.parametrize("scenario", [SINGLE, *LONG])
def test_molecule_scenario(scenario: str) -> None:
    bin_directory = Path(sys.executable).parent
    engine.ensure()
    try:
        result = run_here(
            str(bin_directory / "molecule"),
            "test",
            f"--scenario-name={scenario}",
            MOLECULE_GLOB="tests/molecule/*/molecule.yml",
            PATH=f"{bin_directory}:{os.environ['PATH']}",
        )
        assert result.returncode == 0, result.stdout
        assert f"molecule-{scenario}" not in lab.names(), "destroy left something behind"
    finally:
        lab.down(f"molecule-{scenario}")
