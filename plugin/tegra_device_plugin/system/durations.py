# SPDX-License-Identifier: Apache-2.0
"""Durations, counted by their length."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

# Seconds. An Allocate takes half a millisecond, a kubelet gives up on a registration after 10 s.
UPPER_BOUNDS = (0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0, 15.0)


class Durations:
    """How many durations were at most as long as each bound, and their sum in seconds."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(UPPER_BOUNDS) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(UPPER_BOUNDS, seconds)] += 1
        self.sum += seconds

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Observe how long the block takes, also if it fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.observe(time.monotonic() - started)

    def cumulative(self) -> list[int]:
        """Give the number of durations up to each bound, and of all."""
        return list(accumulate(self._counts))
