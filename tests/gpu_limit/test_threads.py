# SPDX-License-Identifier: Apache-2.0
"""Threads and processes of different priority on one core, and threads that are cancelled."""

import subprocess
from pathlib import Path

import pytest

from tests import ledgers
from tests.gpu_limit.rig import Rig
from tests.lab import compiler
from tools.process import run

SOURCES = Path(__file__).parent
NOT_PERMITTED = 77


def compiled(out: Path) -> Path:
    source = SOURCES / f"{out.name}.c"
    run([compiler.tool("gcc", "amd64"), "-O2", "-Wall", "-Werror", "-o", out, source, "-ldl", "-lpthread"])
    return out


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compiled(tmp_path / "threads")


@pytest.mark.parametrize("futex", ["pi", "no-pi"])
@pytest.mark.parametrize("policy", ["other", "fifo"])
@pytest.mark.parametrize("who", ["threads", "processes"])
def test_both_go_on(rig: Rig, program: Path, who: str, policy: str, futex: str) -> None:
    environment = rig.but(ledger=program.with_name("ledger")).environment
    command: list[str | Path] = [program, who, policy, futex]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode == NOT_PERMITTED:
        pytest.skip("SCHED_FIFO needs CAP_SYS_NICE")
    assert ran.returncode == 0, ran
    calls, first_calls = map(int, ran.stdout.split())
    # With a lock that spins, the thread of higher priority makes one call or two a second.
    assert min(calls, first_calls) > 20


@pytest.mark.parametrize("futex", ["pi", "no-pi"])
def test_a_thread_that_is_cancelled_leaves_nothing_locked(rig: Rig, futex: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledgers.write(ledger)
    environment = rig.but(ledger=ledger).environment
    assert run([compiled(tmp_path / "cancelled"), ledger, futex], env=environment).stdout == "all well\n"
