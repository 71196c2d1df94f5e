# SPDX-License-Identifier: Apache-2.0
"""Waits with a deadline, for events, tasks and blocking calls; and the back-off between attempts."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar


async def happens(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for `event`, for at most `seconds` (None: no deadline). True if the event is set.

    A cancellation is never lost. `asyncio.wait_for` of Python 3.11 drops a cancellation in the same iteration
    of the event loop as the awaited result (github.com/python/cpython/issues/86296).
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def ends(work: Awaitable[object], seconds: float) -> bool:
    """Wait for the end of `work`, for at most `seconds`. True if it has ended.

    Raises what `work` raises. A cancellation ends the wait and never reaches `work`, which continues.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=seconds)
    if task.done():
        task.result()
    return task.done()


T = TypeVar("T")


class Backoff(NamedTuple):
    """A delay in seconds that doubles up to a cap."""

    first: float
    cap: float
    doublings: int = 0

    @property
    def seconds(self) -> float:
        return min(self.first * (1 << self.doublings), self.cap)

    def longer(self) -> "Backoff":
        return self if self.seconds == self.cap else self._replace(doublings=self.doublings + 1)

    def reset(self) -> "Backoff":
        return self._replace(doublings=0)


class BlockingCalls:
    """Runs one blocking call at a time in a daemon thread, with a deadline.

    A read of sysfs can hang in the kernel for ever. Then later calls fail immediately, without another
    thread, and the process can still end.
    """

    def __init__(self, deadline: float | None) -> None:
        """`deadline` in seconds; None: there is none."""
        self._deadline = deadline
        self._last: Future[Any] | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Give the result of `function`, or raise its error.

        Raises TimeoutError if this call or an earlier one hangs, and OSError (ENOMEM) if no thread can be
        started.
        """
        if self._last and not self._last.done():
            raise TimeoutError("an earlier call still hangs")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        outcome = Future[T]()

        def work() -> None:
            try:
                outcome.set_result(function())
            except Exception as error:
                outcome.set_exception(error)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_deliver, outcome, answer)

        try:
            threading.Thread(target=work, name="blocking-call", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.ENOMEM, str(error)) from error
        self._last = outcome
        async with asyncio.timeout(self._deadline):
            return await answer

    async def settle(self) -> None:
        """Wait for the end of a call that was cancelled or hangs, no longer than the deadline."""
        if self._last:
            last = asyncio.wrap_future(self._last)
            await asyncio.wait((last,), timeout=self._deadline)
            if last.done():
                last.exception()  # the error has no receiver any more


def _deliver(outcome: Future[T], answer: asyncio.Future[T]) -> None:
    if answer.done():  # cancelled, or past the deadline
        return
    if error := outcome.exception():
        answer.set_exception(error)
    else:
        answer.set_result(outcome.result())
