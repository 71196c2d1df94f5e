# SPDX-License-Identifier: Apache-2.0
"""docs/changes.md, read: each item of its lists is a change on a board."""

import re
from dataclasses import dataclass
from fnmatch import fnmatch

from tests.docs import CHECKOUT

PAGE = CHECKOUT / "docs/changes.md"
ITEM = re.compile(r"^\* .*(?:\n  .*)*", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Change:
    """`paths` are shell patterns, a directory with its content. `stays`: reset.yml does not remove it."""

    what: str
    paths: tuple[str, ...]
    stays: bool

    def covers(self, path: str) -> bool:
        return any(fnmatch(path, one) or fnmatch(path, f"{one}/*") for one in self.paths)

    def names(self, other: str) -> bool:
        """Whether it names a port, a setting or a package in its text."""
        return any(fnmatch(other, code) for code in CODE.findall(self.what)) or f" {other}" in self.what


def changes() -> list[Change]:
    listed = PAGE.read_text().partition("\n## The changes\n")[2]
    found = []
    for item in ITEM.findall(listed):
        what, stays, _ = " ".join(item.split()).partition(" * stays: ")
        beginning = re.match(r"\* (`/[^`]+`(, )?)*", what)
        found.append(Change(what, tuple(CODE.findall(beginning[0] if beginning else "")), bool(stays)))
    return found
