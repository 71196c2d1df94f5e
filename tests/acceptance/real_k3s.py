# SPDX-License-Identifier: Apache-2.0
"""Labs whose boards get K3s itself, compiled from its own sources."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest

from tests.acceptance import containerd
from tests.lab import k3s, lab
from tests.lab.board import Board

VERSION = k3s.NEWEST
"""Which one, unless a test is of another."""


@contextmanager
def fresh(name: str, types: Sequence[str], version: str = VERSION) -> Iterator[list[Board]]:
    """Bare boards and a bundle with that K3s, a key of RELEASES; all of it goes at the end."""
    containerd.skip_without_go(partial(k3s.k3s, version))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_K3S", version)
        with lab.fresh(name, types) as up:
            yield up


def named(suffix: str = "", minors: int = 0) -> str:
    """Return what K3s in a bundle for an upgrade calls itself: SIMULATED, its code is that of VERSION."""
    return k3s.named_version(k3s.RELEASES[VERSION], suffix, minors)
