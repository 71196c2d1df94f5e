# SPDX-License-Identifier: Apache-2.0
"""Numbered device ids. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Numbered:
    """The ids PREFIX0 to PREFIX<count - 1> in order, without an object for each."""

    prefix: str
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}{number}" for number in range(self.count))

    def __contains__(self, id_: str, /) -> bool:
        number = id_.removeprefix(self.prefix)
        # The length first: Python refuses to read a number of thousands of digits.
        if not id_.startswith(self.prefix) or len(number) > len(str(self.count)) or not number.isdecimal():
            return False
        return str(int(number)) == number and int(number) < self.count


def lowest(ids: Sequence[str]) -> str:
    """Give the id with the lowest number; the ids have one prefix."""
    length = min(map(len, ids))
    return min(id_ for id_ in ids if len(id_) == length)
