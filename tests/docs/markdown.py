# SPDX-License-Identifier: Apache-2.0
"""The project's Markdown as its readers see it: headings, links, blocks of code, code within a line."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tools.cache import CHECKOUT
from tools.process import run

# GitHub drops these characters, then it writes '-' for each blank.
NOT_IN_AN_ANCHOR = re.compile(r"[^\w\- ]")
NAMED = re.compile(r'<a id="([^"]+)"></a>')


@dataclass(frozen=True)
class Block:
    """A fenced block of code: `language` as its fence says, `line` of the fence, from 1."""

    language: str
    line: int
    text: str


@dataclass(frozen=True)
class Section:
    """A heading, its level from 1, the anchor that GitHub gives it, and the text below up to the next one."""

    level: int
    title: str
    anchor: str
    text: str


@dataclass(frozen=True)
class Document:
    """One Markdown file; `code` is what stands within lines, `named` are anchors of HTML.

    `passages` are paragraphs, headings, items of lists and cells of tables, with their markup.
    """

    path: Path
    sections: tuple[Section, ...]
    passages: tuple[str, ...]
    links: tuple[str, ...]
    blocks: tuple[Block, ...]
    code: tuple[str, ...]
    named: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(CHECKOUT))

    @property
    def anchors(self) -> frozenset[str]:
        return frozenset(section.anchor for section in self.sections) | frozenset(self.named)


def anchor(heading: str) -> str:
    """The anchor that GitHub gives the first heading of this text."""
    return NOT_IN_AN_ANCHOR.sub("", heading.strip().lower()).replace(" ", "-")


@cache
def paths() -> tuple[Path, ...]:
    listed = run(["git", "ls-files", "*.md"], cwd=CHECKOUT).stdout.splitlines()
    return tuple(CHECKOUT / name for name in listed if (CHECKOUT / name).exists())


@cache
def read(path: Path) -> Document:
    text = path.read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    return Document(
        path=path,
        sections=tuple(_sections(tokens, text.splitlines())),
        passages=tuple(token.content for token in tokens if token.type == "inline"),
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
        named=tuple(NAMED.findall(text)),
    )


def _sections(tokens: list[Token], lines: list[str]) -> Iterator[Section]:
    """All sections; the second heading of one text gets the anchor `...-1`, the third `...-2`."""
    headings = [
        (opening.map or [0, 0], int(opening.tag[1:]), _plain(content))
        for opening, content in pairwise(tokens)
        if opening.type == "heading_open"
    ]
    ends = [place[0] for place, _, _ in headings[1:]] + [len(lines)]
    seen: Counter[str] = Counter()
    for (place, level, title), end in zip(headings, ends, strict=True):
        name = anchor(title)
        suffix = f"-{seen[name]}" if seen[name] else ""
        seen[name] += 1
        yield Section(level, title, name + suffix, "\n".join(lines[place[1] : end]).strip())


def _plain(content: Token) -> str:
    """A line's text without its markup."""
    return "".join(child.content for child in content.children or () if child.type in ("text", "code_inline"))
