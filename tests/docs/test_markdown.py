# SPDX-License-Identifier: Apache-2.0
"""Markdown: links lead somewhere, blocks of code say what they are, sentences and lines are short."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs import CHECKOUT, markdown

# sh: typed on the controller, in the checkout. console: with a prompt that says where, and what comes back.
LANGUAGES = {"sh", "console", "text", "dockerfile", "yaml", "json", "ini", "python", "mermaid"}


MOST_WORDS = 24
LINE_LIMIT = 120  # characters; a line has fewer
# Inline code counts as one, and a link as its text.
CODE, TARGET = re.compile(r"`+[^`]+`+"), re.compile(r"\]\([^)]*\)")
# Where a sentence ends: a stop, perhaps closing brackets or quotes behind it, then a blank or the end.
STOP = re.compile(r"(?<=[.!?])[)\"'\]]*(?:\s+|$)|  \n")
WORD = re.compile(r"\S*\w\S*")


def broken(document: markdown.Document) -> list[str]:
    lost = []
    for link in document.links:
        url = urlsplit(link)
        if url.scheme or url.netloc:
            continue
        target = (document.path.parent / unquote(url.path)).resolve() if url.path else document.path
        if not target.is_relative_to(CHECKOUT) or not target.exists():
            lost.append(f"{link}: there is no such file")
        elif url.fragment and target.suffix == ".md" and url.fragment not in markdown.read(target).anchors:
            lost.append(f"{link}: there is no such heading")
    return lost


@pytest.mark.parametrize("path", markdown.paths(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_link_within_the_checkout_leads_somewhere(path: Path) -> None:
    assert broken(markdown.read(path)) == []


PAGE = re.compile(r"(?<![\w/-])((?:docs|roles|playbooks|tests)/[\w/-]+\.(?:md|yml))(?:#([\w-]+))?")
CODE_OF_PROJECT = ("images", "playbooks", "plugin", "plugins", "release", "roles", "tools")


def named_pages() -> Iterator[tuple[str, str, str]]:
    """Each page or playbook that a message or a comment names: the file, what it names, and the heading."""
    files = [
        path for name in CODE_OF_PROJECT for path in (CHECKOUT / name).rglob("*") if path.suffix != ".pyc"
    ]
    files += [
        CHECKOUT / name
        for name in ("Makefile", "ansible.cfg", "install.sh", "jetson-k3s", "inventory.example")
    ]
    for path in files:
        if path.is_file() and path.suffix not in (".png", ".svg", ".ptx", ".gz"):
            for match in PAGE.finditer(path.read_text(errors="replace")):
                yield str(path.relative_to(CHECKOUT)), match[1], match[2] or ""


def test_every_page_and_playbook_that_code_names_exists() -> None:
    found = set(named_pages())
    assert len(found) > 100
    assert [one for one in found if not (CHECKOUT / one[1]).exists()] == []
    headings = [(file, page, heading) for file, page, heading in found if heading and page.endswith(".md")]
    lost = [one for one in headings if one[2] not in markdown.read(CHECKOUT / one[1]).anchors]
    assert lost == []


@pytest.mark.parametrize("path", markdown.paths(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_block_of_code_names_its_language(path: Path) -> None:
    wrong = {
        block.line: block.language for block in markdown.read(path).blocks if block.language not in LANGUAGES
    }
    assert wrong == {}, f"line: language; one of {sorted(LANGUAGES)}"


@pytest.mark.parametrize("path", markdown.paths(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_sentences_are_short_and_lines_too(path: Path) -> None:
    document = markdown.read(path)
    for passage in document.passages:
        for sentence in STOP.split(TARGET.sub("]", CODE.sub("`code`", passage)).replace("*", "")):
            assert len(WORD.findall(sentence)) <= MOST_WORDS, sentence
    # A program's output and an address cannot be wrapped.
    said = "".join(block.text for block in document.blocks if block.language == "console").splitlines()
    for line in set(path.read_text().splitlines()) - set(said):
        assert len(line) < LINE_LIMIT or len(line.strip("*- ").split()) == 1, line
