# SPDX-License-Identifier: Apache-2.0
"""Waiting until a simulated server has seen something."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Self

SECONDS = 60.0  # a plugin that has ended is not waited for; an emulated one starts in 20 s beside other work


class Awaited:
    """Something that changes, and says so by setting `_changed`. Use as a context manager."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()

    @abstractmethod
    async def start(self) -> None:
        """Begin to serve or observe."""

    @abstractmethod
    async def stop(self) -> None:
        """End as a process does."""

    @abstractmethod
    def describe(self) -> str:
        """Give the state, for a failed assertion."""

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
        """Wait until `condition` is true; fails the test, saying `what` was awaited, after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"within {seconds:g} s there was no {what}; {self.describe()}") from None


async def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a change by another process, which sends no event. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - nothing to await: a log line, a file, a process
            await asyncio.sleep(0.01)
