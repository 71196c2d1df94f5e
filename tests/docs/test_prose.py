# SPDX-License-Identifier: Apache-2.0
"""Documents have sentences of at most 24 words, and lines below 120 characters."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs import CHECKOUT, markdown
from tests.docs.commands import PROMPT

MOST_WORDS = 24
LINE_LIMIT = 120  # characters; a line has fewer

# Where a sentence ends: a stop, perhaps closing brackets or quotes behind it, then a blank or the end.
# A colon or a semicolon ends none.
STOP = re.compile(r"(?<=[.!?])[)\"'\]]*(?:\s+|$)")
WORD = re.compile(r"\S*\w\S*")


def long_sentences(text: str) -> dict[str, int]:
    """Sentences of too many words, with their number of words.

    Paragraphs, headings, list items and cells of tables are looked at, each by itself. Blocks of code are
    not. A piece of inline code is one word, however long it is. A link is the words that a reader sees.
    """
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    counted = {
        sentence: len(WORD.findall(sentence))
        for token in tokens
        if token.type == "inline"
        for passage in _passages(token)
        for sentence in STOP.split(passage)
    }
    return {sentence: words for sentence, words in counted.items() if words > MOST_WORDS}


def _passages(inline: Token) -> Iterator[str]:
    """A line's text as its readers see it, cut at hard line breaks."""
    text = ""
    for child in inline.children or ():
        if child.type == "hardbreak":
            yield text
            text = ""
        elif child.type == "code_inline":
            text += f"`{child.content.replace(' ', '_')}`"
        else:
            text += " " if child.type == "softbreak" else child.content
    yield text


def long_lines(text: str) -> dict[int, int]:
    """Lines of too many characters: their number, from 1, and their length.

    Prose, tables and blocks of code alike; a command is continued with a backslash. What cannot be wrapped is
    exempt: a line that is one word, such as an address, and in a block of the language `console` what a
    program has said.
    """
    lines = text.splitlines()
    said: set[int] = set()
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence" and token.info.strip() == "console" and token.map:
            said.update(_output(lines, range(token.map[0] + 1, token.map[1] - 1)))
    return {
        number + 1: len(line)
        for number, line in enumerate(lines)
        if len(line) >= LINE_LIMIT and number not in said and len(line.strip("*- ").split()) > 1
    }


def _output(lines: list[str], block: range) -> Iterator[int]:
    """Lines of a block that are neither a command nor its continuation."""
    continued = False
    for number in block:
        command = continued or bool(PROMPT.match(lines[number].strip()))
        continued = command and lines[number].endswith("\\")
        if not command:
            yield number


@pytest.mark.parametrize("path", markdown.paths(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_sentences_are_short_and_lines_too(path: Path) -> None:
    text = path.read_text()
    assert (long_sentences(text), long_lines(text)) == ({}, {}), "sentence: words; line: characters"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one " * 25, [25]),
        ("one " * 24, []),
        (f"* item\n* {'one ' * 13}\n  {'two ' * 12}", [25]),
        (f"| a | b |\n|---|---|\n| {'one ' * 20} | {'two ' * 25} |", [25]),
        (f"# {'one ' * 25}", [25]),
        ("one " * 20 + "end. " + "two " * 20, []),
        ("one " * 20 + "(end.) " + "two " * 20, []),
        ("one " * 20 + "v1.2 " + "two " * 20, [41]),
        ("one " * 20 + "`code`. " + "two " * 20, []),
        ("one " * 20 + "`a. b c d e f g`", []),
        ("one " * 20 + "[two words](https://example.org/a/very/long/target)", []),
        ("one " * 21 + "**bold** = | [two more](a.md) words", [25]),
        ("one " * 20 + "end  \n" + "two " * 20, []),
        (f"```text\n{'one ' * 25}\n```", []),
    ],
)
def test_long_sentences_are_found(text: str, words: list[int]) -> None:
    assert list(long_sentences(text).values()) == words


LONG = "word " * 24


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x " * 59 + "x", {}),
        ("x " * 59 + "xx", {1: 120}),
        (f"a\n\n* {'x' * 130}", {}),
        (f"```sh\n{LONG}\n```", {2: 120}),
        (f"```console\n$ {LONG}\\\n  {LONG}\n{LONG}\n```", {2: 123, 3: 122}),
        (f"| a | b |\n|---|---|\n| {LONG} | c |", {3: 128}),
    ],
)
def test_long_lines_are_found(text: str, lines: dict[int, int]) -> None:
    assert long_lines(text) == lines
