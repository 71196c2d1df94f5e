# SPDX-License-Identifier: Apache-2.0
"""`make demo` and the Molecule scenarios, run as their users run them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.playbook import run_here
from tests.lab import inventory, lab
from tests.lab.board import find
from tests.molecule.__main__ import HARDWARE, SINGLE

pytestmark = pytest.mark.lab

LAB = "frontdoor"


@pytest.fixture
def _no_trace_left() -> Iterator[None]:
    lab.down(LAB)
    yield
    lab.down(LAB)
    assert LAB not in lab.names()


@pytest.mark.usefixtures("_no_trace_left")
def test_make_demo_shows_the_gpu_the_query_and_the_scene() -> None:
    demo = run_here("make", "--no-print-directory", "demo", f"LAB={LAB}")
    assert demo.returncode == 0, demo.stdout
    for shown in ("nvidia.com/gpu: 1", "Result = PASS", "Insufficient nvidia.com/gpu"):
        assert shown in demo.stdout


def molecule(*arguments: str) -> None:
    """Run a scenario, or a step of it; AssertionError with its output when it fails."""
    result = run_here(sys.executable, "-m", "tests.molecule", *arguments)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def single() -> Iterator[str]:
    """The lab that the scenario `single` has created, converged and verified. It is destroyed at the end."""
    name = f"molecule-{SINGLE}"
    try:
        molecule(SINGLE, "--keep")
        yield name
        molecule(SINGLE, "destroy")
        assert name not in lab.names()
    finally:
        lab.down(name)


@pytest.mark.acceptance
def test_single_board(single: str) -> None:
    assert [board.running for board in find(single)] == [True]


@pytest.mark.acceptance
def test_hardware_scenario_verifies_the_boards_of_an_inventory(single: str, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    given = tmp_path / "inventory.ini"
    given.write_text(f"{inventory.render(single, find(single))}gpu_verify_reports={reports}\n")
    molecule(HARDWARE, f"--inventory={given}")
    assert [path.name for path in reports.glob("jetson-*.json")] == ["jetson-1.json"]
