# SPDX-License-Identifier: Apache-2.0
"""What a newcomer types: `make demo`."""

from collections.abc import Iterator

import pytest

from tests.acceptance.playbook import run_here
from tests.lab import lab

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
