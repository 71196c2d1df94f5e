# SPDX-License-Identifier: Apache-2.0
"""Each promise of SECURITY.md names tests. These exist, and run when the page says so."""

import json
import re
import sys
from pathlib import Path

import yaml

from tests.docs import CHECKOUT, markdown
from tools.process import run

PAGE = CHECKOUT / "SECURITY.md"
TEST = re.compile(r"`(test_\w+)`")
MARKED = re.compile(r"`(test_\w+)`(?: \(([^)]*)\))?")
DEFINED = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def promises() -> list[str]:
    text = PAGE.read_text().partition("\n## Promises\n")[2].partition("\n## ")[0]
    return re.findall(r"^\* .*(?:\n  .*)*", text, re.MULTILINE)


def test_each_promise_names_its_test() -> None:
    assert promises()
    assert [promise for promise in promises() if not TEST.search(promise)] == []


def files() -> dict[str, list[Path]]:
    """The files that define a test, by the test's name."""
    found: dict[str, list[Path]] = {}
    for path in (CHECKOUT / "tests").rglob("test_*.py"):
        for name in DEFINED.findall(path.read_text()):
            found.setdefault(name, []).append(path)
    return found


def test_each_test_that_is_named_exists_once() -> None:
    defined = files()
    named = {name for name in markdown.read(PAGE).code if name.startswith("test_")}
    assert named
    assert {name: defined.get(name) for name in named if len(defined.get(name, ())) != 1} == {}


# Writes for each test which of its cases have a marker of the nightly suites, by which pytest selects.
COLLECTED = """\
import json
import os
import pathlib

def pytest_collection_finish(session):
    found = {}
    for item in session.items:
        nightly = any(item.get_closest_marker(name) for name in ("acceptance", "arm64"))
        found.setdefault(item.originalname, set()).add(nightly)
    text = json.dumps({name: sorted(kinds) for name, kinds in found.items()})
    pathlib.Path(os.environ["KINDS"]).write_text(text)
"""
MARKS = {(False,): "", (False, True): "more nightly", (True,): "nightly"}
"""By the kinds of a test's cases: at each change, or nightly."""


def test_each_test_has_the_mark_of_the_time_at_which_it_runs(tmp_path: Path) -> None:
    marked = {name: mark for promise in promises() for name, mark in MARKED.findall(promise)}
    kinds_file = tmp_path / "kinds.json"
    (tmp_path / "collected.py").write_text(COLLECTED)
    defined = files()
    paths = sorted({path for name in marked for path in defined[name]})
    run(
        [
            sys.executable,
            *("-m", "pytest", "--collect-only", "--quiet", "-p", "collected", "-p", "no:cacheprovider"),
            *paths,
        ],
        cwd=CHECKOUT,
        env={"PYTHONPATH": str(tmp_path), "KINDS": str(kinds_file)},
    )
    kinds = json.loads(kinds_file.read_text())
    expected = {name: MARKS[tuple(kinds[name])] for name in marked}
    assert {name: mark for name, mark in marked.items() if mark != expected[name]} == {}


def test_workflows_run_at_the_times_that_the_marks_say() -> None:
    def triggers(name: str) -> set[str]:
        workflow = yaml.safe_load((CHECKOUT / f".github/workflows/{name}.yml").read_text())
        return set(workflow[True])  # `on` is a boolean of YAML 1.1

    assert {"push", "pull_request"} <= triggers("tests")
    assert "schedule" in triggers("nightly")
    assert "\nmake test\n" in (CHECKOUT / ".ci/run").read_text()
