# SPDX-License-Identifier: Apache-2.0
"""The time limits of the tests themselves, seen on tests that hang."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A lock of the C library that is taken twice: no signal ends that. PyDLL keeps Python's own lock besides.
HELPERS = """
import asyncio, ctypes, threading, time
from contextlib import suppress
import pytest

def hang(library=ctypes.CDLL):
    lock = ctypes.create_string_buffer(64)
    library(None).pthread_mutex_lock(lock)
    library(None).pthread_mutex_lock(lock)
"""
HANGING = """
async def inner():
    await asyncio.Event().wait()

async def test_task():
    await inner()

def test_call():
    time.sleep(60)

@pytest.fixture
def hanging():
    threading.Event().wait()

def test_fixture(hanging): ...

def test_other(request):
    assert request.node.get_closest_marker("timeout") is None

@pytest.mark.lab
@pytest.mark.fleet
def test_long(request):
    assert request.node.get_closest_marker("timeout").args == (90 * 60,)
"""
SHORT = """
from tests import limits
limits.%s = %d
"""


# Seen: 20 s beside six busy loops and another one, once 41 s.
HANGS_SECONDS = 120


def run(directory: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test file whose limit is a second; standard output and standard error are one."""
    directory.joinpath("test_hangs.py").write_text(HELPERS + test)
    command = [sys.executable, "-m", "pytest", "-p", "tests.limits", "-p", "no:cacheprovider", "--timeout=1"]
    # In a group of its own, so that a worker of xdist says where it is as well.
    process = subprocess.Popen(
        [*command, "--asyncio-mode=auto", "-Wignore", *options, directory],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=HANGS_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # pytest has faulthandler write the stacks
        said, _ = process.communicate()
        pytest.fail(f"pytest did not end within {HANGS_SECONDS} s\n{said}")
    return subprocess.CompletedProcess(process.args, process.returncode, said)


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["alone", "xdist"])
def test_a_test_that_hangs_fails_with_its_stack_and_the_others_run(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    ran = run(tmp_path, HANGING, *options)
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 failed, 2 passed, 1 error" in ran.stdout
    assert re.search(r"test_hangs\.py:\d+ inner\n", ran.stdout)
    assert ran.stdout.count("Timeout (>1.0s)") >= 3


@pytest.mark.parametrize(
    ("test", "options"),
    [
        ("def test_frees_the_interpreter():\n    hang()", ()),
        ("def test_holds_the_interpreter():\n    hang(ctypes.PyDLL)", ()),
        ("def test_holds_the_interpreter():\n    hang(ctypes.PyDLL)", ("-n1",)),
        ("def test_goes_on():\n    while True:\n        with suppress(BaseException): time.sleep(60)", ()),
        (
            "@pytest.fixture\ndef hanging():\n    yield\n    hang()\n\n"
            "def test_fails_before(hanging):\n    assert False",
            (),
        ),
    ],
    ids=["call", "call-with-gil", "call-with-gil-xdist", "swallowed", "teardown-after-failure"],
)
def test_a_test_that_cannot_fail_ends_the_process(
    test: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    tmp_path.joinpath("conftest.py").write_text(SHORT % ("GRACE_SECONDS", 1))
    ran = run(tmp_path, test, *options)
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "most recent call first" in ran.stdout
    assert "test_hangs.py" in ran.stdout


def test_an_end_that_hangs_is_a_failure(tmp_path: Path) -> None:
    # faulthandler reads the stacks of threads that run on, and may crash on one that is no longer as it was.
    # So the interpreter must have come to wait for the thread: that takes 50 ms, or a second under load.
    tmp_path.joinpath("conftest.py").write_text(SHORT % ("END_SECONDS", 10))
    ran = run(tmp_path, "def test_leaves_a_thread():\n    threading.Thread(target=hang).start()")
    assert ran.returncode == 1
    assert "in hang" in ran.stdout
