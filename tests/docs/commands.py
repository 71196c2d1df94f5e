# SPDX-License-Identifier: Apache-2.0
"""Every command of the documents, so that none of them is there without somebody having run it.

A block in the language `sh` is typed on the controller, in the checkout. In a block of the language `console`
the prompt says where: `$` is the controller, `jetson-1$` and `server$` are boards; the rest is what comes
back. Within lines only the project's own programs with arguments count: `docker load` in a sentence is no
request.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.docs import markdown

PROMPT = re.compile(r"^(?P<where>[a-z][a-z0-9-]*)?\$ (?P<command>.+)$")
# A synopsis, which has its options in brackets, is no command.
OURS = re.compile(
    r"^(make|ansible-playbook|ansible-galaxy|python -m|pytest|tegra-device-plugin|"
    r"\./jetson-k3s|\.venv/bin/\S+) [^\[]+$"
)
# A remark at the end of a line, set off by blanks.
REMARK = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True)
class Case:
    """How a command of the documents is tried, as `cases.yml` says; `status` is what it ends with.

    `run` is what is run in its stead, and `why`; `test` is the test that runs it. With `why` alone nothing
    runs it.
    """

    command: str
    status: int = 0
    run: str = ""
    why: str = ""
    test: str = ""


# Its test runs all commands of the page, from top to bottom.
BY_PAGE = dict.fromkeys(("docs/pods.md", "docs/devices.md"), "tests/acceptance/test_pods.py")
TRIED = yaml.safe_load(Path(__file__).with_name("cases.yml").read_text())
ON_BOARDS = tuple(Case(one) if isinstance(one, str) else Case(**one) for one in TRIED["boards"])
BY_TESTS = tuple(Case(one, test=test) for test, commands in TRIED["tests"].items() for one in commands)
UNTRIED = tuple(Case(one, why=why) for why, commands in TRIED["untried"].items() for one in commands)
CASES = ON_BOARDS + BY_TESTS + UNTRIED


def collect() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in markdown.paths():
        document = markdown.read(path)
        if document.name in BY_PAGE:
            continue
        for command in dict.fromkeys(of(document)):
            found.setdefault(command, []).append(document.name)
    return found


def of(document: markdown.Document) -> Iterator[str]:
    for block in document.blocks:
        for line in block.text.replace("\\\n", "").splitlines():
            yield from _of_line(block.language, re.sub(r"\s+", " ", REMARK.sub("", line)).strip())
    yield from (text for text in document.code if OURS.match(text))


def _of_line(language: str, line: str) -> Iterator[str]:
    if language == "sh" and line and not line.startswith("#"):
        yield line
    elif language == "console" and (match := PROMPT.match(line)):
        yield match["command"] if match["where"] is None else line
