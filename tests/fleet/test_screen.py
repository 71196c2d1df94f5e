# SPDX-License-Identifier: Apache-2.0
"""What site.yml leaves on a screen of 80 columns: at most 15 lines for one board, and 25 for three."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.local import TIMEOUT_SECONDS
from tests.fleet.scripted import Fleet
from tests.terminal import rows

pytestmark = pytest.mark.timeout(2 * TIMEOUT_SECONDS)

# A first run has no batches of restarts and not their result; it has more changes instead.
BOARDS = ((0, 15), pytest.param(2, 25, marks=pytest.mark.acceptance))


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a name as short as a home's, for the paths on the screen."""
    return tmp_path_factory.mktemp("s")


@pytest.mark.parametrize(("agents", "most"), BOARDS)
def test_run_in_a_pipe_is_short(root: Path, agents: int, most: int) -> None:
    fleet = Fleet(root, 1, agents)
    run = fleet.play("site", f"--extra-vars=gpu_verify_reports={root}/reports")
    assert run.code == 0, run.said
    lines = run.said.splitlines()
    assert len(lines) <= most, run.said
    for name in (*fleet.servers, *fleet.agents):
        assert f"      {name}: PASSED, 9 of 11 checked" in lines
    assert f"      The complete report is {root}/reports/index.html." in lines
    assert "Begin the report" not in run.said and "default-runtime passed" not in run.said
    assert "default-runtime passed" in run.logged and "allocatable nvidia.com/gpu" in run.logged


@pytest.mark.acceptance
@pytest.mark.parametrize(("agents", "most"), BOARDS)
def test_run_in_a_terminal_is_short(root: Path, agents: int, most: int) -> None:
    terminal = Fleet(root, 1, agents).on_terminal("site", f"--extra-vars=gpu_verify_reports={root}/reports")
    terminal.until("")
    assert terminal.process.returncode == 0, terminal.screen
    assert rows(terminal.screen) <= most, "\n".join(terminal.screen)
