# SPDX-License-Identifier: Apache-2.0
"""CHANGELOG.md in the form of keepachangelog.com, version 1.1.0."""

import re
from dataclasses import dataclass
from itertools import pairwise

FILE = "CHANGELOG.md"
UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## \[(?P<name>[^\]\n]+)\](?: - (?P<date>\S+))?[ \t]*$", re.MULTILINE)
_ITEM = re.compile(r"^- \S", re.MULTILINE)


class ChangelogError(Exception):
    """The changelog lacks something for the release; the message says what to write."""


@dataclass(frozen=True)
class Entry:
    """What changed in a version; `date` is as written, `start` is where its heading begins in the text."""

    name: str
    date: str | None
    text: str
    start: int

    @property
    def says_something(self) -> bool:
        """Whether there is a line about a change."""
        return _ITEM.search(self.text) is not None


def entries(text: str) -> dict[str, Entry]:
    """Return the entries by their names: versions, and `Unreleased`."""
    headings = list(_HEADING.finditer(text))
    starts = [*(heading.start() for heading in headings), len(text)]
    return {
        heading["name"]: Entry(heading["name"], heading["date"], text[heading.end() : end].strip(), start)
        for heading, (start, end) in zip(headings, pairwise(starts), strict=True)
    }


def released(text: str, version: str, today: str) -> str:
    """Return the changelog with an entry for `version` and `today` (YYYY-MM-DD), else made of `Unreleased`.

    Raises ChangelogError when there is neither.
    """
    found = entries(text)
    wanted = f"## [{version}] - {today}"
    if version in found:
        own = found[version]
        if own.date != today:
            raise ChangelogError(
                f"{FILE} has {version} without today's date: change its heading to `{wanted}`"
            )
        if not own.says_something:
            raise ChangelogError(
                f"{FILE} says nothing about {version}: write a line `- ...` below `{wanted}` for each change "
                "that users notice"
            )
        return text
    waiting = found.get(UNRELEASED)
    if waiting is None or not waiting.says_something:
        raise ChangelogError(
            f"{FILE} has no entry for {version}: write a line `- ...` below `## [{UNRELEASED}]` for each "
            "change that users notice"
        )
    heading = f"## [{UNRELEASED}]"
    rest = text[waiting.start :].partition("\n")[2]
    return f"{text[: waiting.start]}{heading}\n\n{wanted}\n{rest}"
