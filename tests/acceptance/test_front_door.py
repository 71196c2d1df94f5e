# SPDX-License-Identifier: Apache-2.0
"""`make demo` and `molecule test`, run as their users run them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.playbook import run_here
from tests.lab import lab

pytestmark = pytest.mark.lab


@contextmanager
def removed(name: str) -> Iterator[None]:
    """Remove a lab before and after the block."""
    lab.down(name)
    try:
        yield
    finally:
        lab.down(name)


def test_make_demo_shows_the_gpu_the_query_and_the_scene() -> None:
    with removed("frontdoor"):
        demo = run_here("make", "--no-print-directory", "demo", "LAB=frontdoor")
        assert demo.returncode == 0, demo.stdout
        for shown in ("nvidia.com/gpu: 1", "Result = PASS", "Insufficient nvidia.com/gpu"):
            assert shown in demo.stdout
    assert "frontdoor" not in lab.names()


@pytest.mark.acceptance
def test_molecule_creates_checks_and_removes_a_board() -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with removed("molecule"):
        tested = run_here("bash", "-c", "cd tests && molecule test", PATH=path)
        assert tested.returncode == 0, tested.stdout
        assert "molecule" not in lab.names()
