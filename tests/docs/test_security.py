# SPDX-License-Identifier: Apache-2.0
"""Each promise of SECURITY.md names tests, and these exist."""

import re

from tests.docs import CHECKOUT, markdown

PAGE = CHECKOUT / "SECURITY.md"
TEST = re.compile(r"`(test_\w+)`")
DEFINED = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def promises() -> list[str]:
    text = PAGE.read_text().partition("\n## Promises\n")[2].partition("\n## ")[0]
    return re.findall(r"^\* .*(?:\n  .*)*", text, re.MULTILINE)


def test_each_promise_names_its_test() -> None:
    assert promises()
    assert [promise for promise in promises() if not TEST.search(promise)] == []


def test_each_test_that_is_named_exists() -> None:
    defined = {
        name for path in (CHECKOUT / "tests").rglob("test_*.py") for name in DEFINED.findall(path.read_text())
    }
    named = {name for name in markdown.read(PAGE).code if name.startswith("test_")}
    assert named
    assert named - defined == set()
