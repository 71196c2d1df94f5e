# SPDX-License-Identifier: Apache-2.0
"""The one way to wait with a deadline."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for `event`, for so many seconds at most (None: without an end); tell whether it is set.

    A cancellation always gets through. `asyncio.wait_for` of Python 3.11 drops one that comes in the same
    turn of the loop as what it waits for (github.com/python/cpython/issues/86296).
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def ends(work: Awaitable[object], seconds: float) -> bool:
    """Wait for the end of `work`, for so many seconds at most; tell whether it has ended.

    Raises what `work` raises. A cancellation ends the waiting at once and never reaches `work`, which goes on
    by itself.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=seconds)
    if task.done():
        task.result()
    return task.done()
