# SPDX-License-Identifier: Apache-2.0
"""Markdown that is made from data, and its place in a document."""

import re
import textwrap

# GitHub drops these characters, then it writes '-' for each blank.
NOT_IN_AN_ANCHOR = re.compile(r"[^\w\- ]")
LINE = 119  # characters; tests/docs/test_markdown.py
CODE = re.compile("`[^`]+`|<a [^>]+>")
UNBROKEN = "\0"


def anchor(heading: str) -> str:
    """The anchor that GitHub gives the first heading of this text."""
    return NOT_IN_AN_ANCHOR.sub("", heading.strip().lower()).replace(" ", "-")


def wrapped(line: str) -> str:
    """An item in lines of limited length, indented below its text; inline code and anchors are not broken."""
    whole = CODE.sub(lambda code: code[0].replace(" ", UNBROKEN), line)
    indent = " " * (line.index("*") + 2)
    lines = textwrap.fill(
        whole, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace(UNBROKEN, " ")


def put_in(document: str, name: str, text: str) -> str:
    """The document with this text between `<!-- NAME: ... -->` and `<!-- end of NAME -->`."""
    place = re.compile(rf"(?<=<!-- {name}: )([^\n]* -->\n).*(?=<!-- end of {name} -->)", re.DOTALL)
    if not place.search(document):
        raise ValueError(f"the document has no place for {name}: add both marks")
    return place.sub(lambda match: f"{match[1]}{text}\n", document)
