# SPDX-License-Identifier: Apache-2.0
"""What the suite does with a plugin that fails: it says so at once, and ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import running

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("waits_for", ["registration", "anything"])
async def test_a_plugin_that_ends_unasked_ends_every_wait(
    waits_for: str, directory: Path, board: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match="ended by itself with exit code 3"):
        async with (
            FakeKubelet(directory) as kubelet,
            running("sh -c 'echo why >&2; exit 3'", board, directory),
        ):
            await (kubelet.until_allocatable() if waits_for == "registration" else asyncio.Event().wait())
    assert "why" in capfd.readouterr().err


async def test_a_plugin_that_is_asked_to_end_may(directory: Path, board: Path) -> None:
    async with running("sleep 60", board, directory) as plugin:
        plugin.signal(15)
        assert await plugin.ended() == -15
        await asyncio.sleep(0)


async def test_a_plugin_that_ignores_a_signal_is_shown(
    directory: Path, board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.conformance.plugin.GRACE_SECONDS", 0.5)
    shown = r"still there 0\.5 s after a signal: sleep S, ran [\d.]+ s, waited [\d.]+ s for a CPU"
    async with running("""sh -c 'trap "" TERM; echo deaf >&2; exec sleep 60'""", board, directory) as plugin:
        await plugin.says("deaf")
        plugin.signal(15)
        with pytest.raises(AssertionError, match=shown):
            await plugin.ended()


async def test_a_tests_own_failure_is_what_is_reported(directory: Path, board: Path) -> None:
    with pytest.raises(TimeoutError, match="its own"):
        async with running("sleep 60", board, directory):
            raise TimeoutError("its own")


def test_a_failed_run_ends_and_leaves_nothing_to_the_collector() -> None:
    # The kubelet of this test is started after the plugin, not by the fixture.
    suite = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--plugin-command=sh -c 'exit 3'",
    ]
    case = "tests/conformance/test_registration.py::test_kubelet_socket_that_appears_after_the_plugin"
    ran = subprocess.run(
        [*suite, case],
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert "3 failed" in ran.stdout
    assert "exit code 3" in ran.stdout
    assert "never awaited" not in ran.stdout
