# SPDX-License-Identifier: Apache-2.0
"""What the suite does with a plugin that fails: it says so at once, and ends."""

import asyncio
from pathlib import Path

import pytest

from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import running


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
