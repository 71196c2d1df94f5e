# SPDX-License-Identifier: Apache-2.0
"""Blocking reads of the board, kept away from the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Sensor:
    """Runs one blocking read at a time in a daemon thread, with a deadline.

    A read of sysfs can hang in the kernel for ever. Then every later one fails at once instead of adding a
    thread, nothing else waits for it, and the process can still end.
    """

    def __init__(self, deadline: float) -> None:
        """`deadline` in seconds."""
        self._deadline = deadline
        self._last: Future[Any] | None = None

    async def read(self, function: Callable[[], T]) -> T:
        """Give what `function` returns or raises; raises TimeoutError if it, or an earlier one, hangs."""
        if self._last and not self._last.done():
            raise TimeoutError("an earlier read of the board still hangs")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._last = outcome = Future[T]()

        def work() -> None:
            try:
                outcome.set_result(function())
            except Exception as error:
                outcome.set_exception(error)
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(_hand_over, outcome, answer)

        threading.Thread(target=work, name="sensor", daemon=True).start()
        async with asyncio.timeout(self._deadline):
            return await answer

    async def settle(self) -> None:
        """Wait for the end of a read that was given up, no longer than the deadline."""
        if self._last:
            last = asyncio.wrap_future(self._last)
            await asyncio.wait((last,), timeout=self._deadline)
            if last.done():
                last.exception()  # whoever gave it up does not want to know


def _hand_over(outcome: Future[T], answer: asyncio.Future[T]) -> None:
    if answer.done():  # given up
        return
    if error := outcome.exception():
        answer.set_exception(error)
    else:
        answer.set_result(outcome.result())
