# SPDX-License-Identifier: Apache-2.0
"""Many boards lean on one server at once: none is refused by its sshd, and what they cost it has a bound."""

from collections.abc import Iterator

import pytest

from tests.acceptance import light_boards
from tests.acceptance.light_boards import Fleet

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

MAX_SESSIONS = 10  # sshd_config(5): the default


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with light_boards.fleet("many-boards") as made:
        yield made


@pytest.mark.parametrize("count", [25, light_boards.MOST])
def test_every_board_is_served_within_the_bound(fleet: Fleet, count: int) -> None:
    run, peak = fleet.run(count)
    assert run.returncode == 0, run.why
    assert len(run.recap) == count
    assert not [name for name, recap in run.recap.items() if recap.unreachable or recap.failed]
    # A shell outlives its task's answer for a moment, so there can be more than are asked for.
    assert 1 < peak.tasks <= MAX_SESSIONS
