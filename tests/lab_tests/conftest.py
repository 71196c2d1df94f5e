# SPDX-License-Identifier: Apache-2.0
"""A lab of two unlike boards, up once for all tests here."""

from collections.abc import Iterator

import pytest

from tests.lab import bundle, lab
from tests.lab.board import Board

NAME = "labtest"
TYPES = ("xaviernx-jp5", "thor5000-jp70")


@pytest.fixture(scope="session")
def boards_up() -> Iterator[list[Board]]:
    """Two boards that are up, without a bundle; nothing of them is left afterwards."""
    lab.down(NAME)
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Takes minutes with an empty cache, and nothing here installs anything from it.
            patch.setattr(bundle, "write", lambda _directory, **_options: None)
            up = lab.up(NAME, TYPES)
        yield up
    finally:
        lab.down(NAME)


@pytest.fixture
def xavier(boards_up: list[Board]) -> Board:
    """A Xavier NX under JetPack 5: nvgpu, a platform device."""
    return boards_up[0]


@pytest.fixture
def thor(boards_up: list[Board]) -> Board:
    """A Thor under JetPack 7: a PCI device."""
    return boards_up[1]
