# SPDX-License-Identifier: Apache-2.0
"""Threads of different priority on one core."""

import subprocess
from pathlib import Path

import pytest

from images.arm64 import compiler
from tests.gpu_limit.rig import Rig
from tests.lab.process import run

SECONDS, NOT_PERMITTED = "1", 77


@pytest.mark.parametrize("policy", ["other", "fifo"])
@pytest.mark.parametrize("shared", [False, True])
def test_both_threads_go_on(rig: Rig, policy: str, shared: bool, tmp_path: Path) -> None:
    program = tmp_path / "threads"
    source = Path(__file__).with_name("threads.c")
    run([compiler.tool("gcc", "amd64"), "-O2", "-o", program, source, "-ldl", "-lpthread"])
    environment = (rig.but(ledger=tmp_path / "ledger") if shared else rig).environment
    command = [program, SECONDS, policy]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode == NOT_PERMITTED:
        pytest.skip("SCHED_FIFO needs CAP_SYS_NICE")
    assert ran.returncode == 0, ran
    calls, _, first_calls = map(int, ran.stdout.split())
    # With a lock that spins, the thread of higher priority makes one call or two a second.
    assert min(calls, first_calls) > 20  # noqa: PLR2004
