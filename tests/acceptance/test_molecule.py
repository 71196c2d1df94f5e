# SPDX-License-Identifier: Apache-2.0
"""The Molecule scenarios, run as their users run them. Each has a lab of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.playbook import run_here
from tests.lab import inventory, lab
from tests.lab.board import find
from tests.molecule.__main__ import HARDWARE, scenarios
from tools import engine

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

SINGLE = "single"
LONG = [name for name in scenarios() if name not in {SINGLE, HARDWARE}]


def molecule(*arguments: str) -> None:
    """Run a scenario, or a step of it; AssertionError with its output when it fails."""
    result = run_here(sys.executable, "-m", "tests.molecule", *arguments)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def single() -> Iterator[str]:
    """The lab that the scenario `single` has brought up, converged and verified, and that is still there."""
    name = f"molecule-{SINGLE}"
    engine.ensure()
    lab.down(name)
    try:
        molecule(SINGLE, "--keep")
        yield name
    finally:
        lab.down(name)


def test_single_board(single: str) -> None:
    assert [board.running for board in find(single)] == [True]


def test_hardware_scenario_verifies_the_boards_of_an_inventory(single: str, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    given = tmp_path / "inventory.ini"
    given.write_text(f"{inventory.render(single, find(single))}gpu_verify_reports={reports}\n")
    molecule(HARDWARE, f"--inventory={given}")
    assert [path.name for path in reports.glob("jetson-*.json")] == ["jetson-1.json"]


@pytest.mark.acceptance
@pytest.mark.parametrize("scenario", LONG)
def test_scenario(scenario: str) -> None:
    engine.ensure()
    try:
        molecule(scenario)
        assert f"molecule-{scenario}" not in lab.names(), "destroy left something behind"
    finally:
        lab.down(f"molecule-{scenario}")
