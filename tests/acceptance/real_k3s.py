# SPDX-License-Identifier: Apache-2.0
"""Labs whose boards get K3s itself, compiled from its own sources."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.acceptance import containerd
from tests.lab import k3s, lab
from tests.lab.board import Board

TYPES = ("agxorin-jp6", "orinnano-jp6")


@contextmanager
def fresh(name: str, version: str) -> Iterator[list[Board]]:
    """Two bare boards and a bundle with that K3s, a key of RELEASES; all of it goes at the end."""
    containerd.skip_without_go(partial(k3s.k3s, version))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_K3S", version)
        with lab.fresh(name, TYPES) as up:
            yield up
