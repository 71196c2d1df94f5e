# SPDX-License-Identifier: Apache-2.0
"""The project's Markdown as its readers see it: headings, links, blocks of code, code within a line."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs import CHECKOUT

# What GitHub leaves out of a heading's anchor; then it writes '-' for each blank.
NOT_IN_AN_ANCHOR = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
class Block:
    """A fenced block of code: `language` as its fence says, `line` of the fence, from 1."""

    language: str
    line: int
    text: str


@dataclass(frozen=True)
class Document:
    """One Markdown file; `anchors` are those that GitHub gives its headings, `code` is what stands within lines."""

    path: Path
    anchors: frozenset[str]
    links: tuple[str, ...]
    blocks: tuple[Block, ...]
    code: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its path in the checkout."""
        return str(self.path.relative_to(CHECKOUT))


@cache
def paths() -> tuple[Path, ...]:
    """Every Markdown file that git has, or would have."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(CHECKOUT / name for name in listed.stdout.splitlines() if (CHECKOUT / name).exists())


@cache
def read(path: Path) -> Document:
    """Read a file of Markdown."""
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text())
    inline = [child for token in tokens for child in token.children or ()]
    return Document(
        path=path,
        anchors=frozenset(_anchors(tokens)),
        links=tuple(
            str(token.attrs["href" if token.type == "link_open" else "src"])
            for token in inline
            if token.type in ("link_open", "image")
        ),
        blocks=tuple(
            Block(token.info.strip(), token.map[0] + 1 if token.map else 0, token.content)
            for token in tokens
            if token.type in ("fence", "code_block")
        ),
        code=tuple(token.content for token in inline if token.type == "code_inline"),
    )


def anchor(heading: str) -> str:
    """The anchor that GitHub gives the first heading of this text."""
    return NOT_IN_AN_ANCHOR.sub("", heading.strip().lower()).replace(" ", "-")


def _anchors(tokens: list[Token]) -> Iterator[str]:
    """Anchors of all headings; the second of one text gets `-1`, the third `-2`."""
    seen: dict[str, int] = {}
    for opening, content in zip(tokens, tokens[1:], strict=False):
        if opening.type == "heading_open":
            texts = [
                child.content for child in content.children or () if child.type in ("text", "code_inline")
            ]
            name = anchor("".join(texts))
            count = seen.get(name, 0)
            seen[name] = count + 1
            yield f"{name}-{count}" if count else name
