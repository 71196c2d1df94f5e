# SPDX-License-Identifier: Apache-2.0
"""Waits with a deadline end, no cancellation is lost, and a read that hangs keeps no process alive."""

import asyncio
import subprocess
import sys
import threading

import pytest
from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.hosttree import is_own_shortage
from tegra_device_plugin.system.waiting import BlockingCalls


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


async def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await waiting.ends(fail(), 60)


async def test_a_missing_thread_is_another_error_than_a_read_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    blocking = BlockingCalls(deadline=5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="can't start new thread") as failed:
                await blocking.run(lambda: 42)
            assert is_own_shortage(failed.value)
    assert await blocking.run(lambda: 42) == 42


def test_a_process_can_end_while_a_read_hangs() -> None:
    program = """
import asyncio, contextlib, threading
from tegra_device_plugin.system.waiting import BlockingCalls
with contextlib.suppress(TimeoutError):
    asyncio.run(BlockingCalls(deadline=0.05).run(threading.Event().wait))
print("ended")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, check=True)
    assert ended.stdout == b"ended\n"
