# SPDX-License-Identifier: Apache-2.0
"""The boards of a story's lab, which no playbook has touched."""

from collections.abc import Iterator

import pytest

from tests.lab import lab
from tests.lab.board import Board

SERVER_AND_AGENT = ("agxorin-jp6", "orinnano-jp6")


@pytest.fixture(scope="module")
def boards(request: pytest.FixtureRequest) -> Iterator[list[Board]]:
    """The lab LAB of the test's file, with boards of its TYPES."""
    with lab.fresh(request.module.LAB, getattr(request.module, "TYPES", SERVER_AND_AGENT)) as up:
        yield up
