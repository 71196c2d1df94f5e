# SPDX-License-Identifier: Apache-2.0
"""Waiting with a deadline: it ends, and a cancellation gets through whatever comes with it."""

import asyncio

import pytest
from tegra_device_plugin.system import waiting


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("seconds", [None, 0.0, 1e-6, 60.0])
async def test_a_cancellation_that_comes_with_the_event_is_not_dropped(
    turns: int, seconds: float | None
) -> None:
    for _ in range(100):
        event = asyncio.Event()

        async def forever(event: asyncio.Event) -> None:
            while True:
                event.clear()
                await waiting.happens(event, seconds)

        task = asyncio.ensure_future(forever(event))
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,), timeout=5)
        assert task.cancelled()


async def test_a_cancellation_ends_the_waiting_and_not_the_work() -> None:
    begun, end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await end.wait()
        ended.set()

    waiter = asyncio.ensure_future(waiting.ends(work(), 60))
    await begun.wait()
    waiter.cancel()
    await asyncio.wait((waiter,))
    assert waiter.cancelled()
    end.set()
    assert await waiting.happens(ended, 5)


async def test_what_the_work_raises_is_raised() -> None:
    async def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await waiting.ends(fail(), 60)
