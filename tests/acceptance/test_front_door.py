# SPDX-License-Identifier: Apache-2.0
"""What a newcomer types: `make demo`; and the Molecule scenarios, run as their users run them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import engine, lab
from tests.lab.paths import CHECKOUT

pytestmark = pytest.mark.lab

LAB = "frontdoor"
SCENARIOS = sorted(path.parent.name for path in (CHECKOUT / "tests/molecule").glob("*/molecule.yml"))
# Both include virtual boards that boot, on a busy two-core machine.
TIMEOUT_SECONDS = 900


def _run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.fixture
def _no_trace_left() -> Iterator[None]:
    lab.down(LAB)
    yield
    lab.down(LAB)
    assert LAB not in lab.names()


@pytest.mark.usefixtures("_no_trace_left")
def test_make_demo_shows_the_gpu_the_query_and_the_scene() -> None:
    demo = _run("make", "--no-print-directory", "demo", f"LAB={LAB}")
    assert demo.returncode == 0, demo.stdout
    for shown in ("nvidia.com/gpu: 1", "Result = PASS", "Insufficient nvidia.com/gpu"):
        assert shown in demo.stdout


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_molecule_scenario(scenario: str) -> None:
    bin_directory = Path(sys.executable).parent
    result = _run(
        str(bin_directory / "molecule"),
        "test",
        f"--scenario-name={scenario}",
        MOLECULE_GLOB="tests/molecule/*/molecule.yml",
        PATH=f"{bin_directory}:{os.environ['PATH']}",
    )
    assert result.returncode == 0, result.stdout
    engine.ensure()
    assert f"molecule-{scenario}" not in lab.names(), "destroy left something behind"
