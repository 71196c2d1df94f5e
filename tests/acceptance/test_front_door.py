# SPDX-License-Identifier: Apache-2.0
"""`make demo` and `molecule test`, run as their users run them."""

import os
import re
import shlex
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


def molecule_test(state: Path, *options: str) -> str:
    """Run `molecule test` and return its output. Molecule keeps its notes on what is created in `state`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = f"cd tests && {shlex.join(('molecule', 'test', *options))}"
    with removed("molecule"):
        tested = run_here("bash", "-c", command, PATH=path, MOLECULE_EPHEMERAL_DIRECTORY=str(state))
        assert tested.returncode == 0, tested.stdout
        assert "molecule" not in lab.names()
    return tested.stdout


def test_molecule_runs_pods_on_one_shared_board(tmp_path: Path) -> None:
    said = molecule_test(tmp_path, "--shared-state", "-s", "device-query", "-s", "concurrency")
    for shown in (
        "Result = PASS",
        "first is Running, second is Pending",
        "first is Running, second is Running",
    ):
        assert shown in said


@pytest.mark.acceptance
def test_molecule_runs_every_scenario(tmp_path: Path) -> None:
    said = molecule_test(tmp_path, "--all")
    for scenario in ("concurrency", "containerd", "default", "device-query"):
        assert re.search(rf"{scenario} .*failed=0", said)
