# SPDX-License-Identifier: Apache-2.0
"""Records for `make release` what ran of a suite (`--suite`), and on which commit. See tools/suites.py."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pytest

from tools import suites
from tools.cache import CHECKOUT
from tools.process import ToolError, run


def clean_commit() -> str:
    """Return the id of the checkout's commit; empty without git, or if a file differs from the commit."""
    try:
        if run(["git", "-C", CHECKOUT, "status", "--porcelain"]).stdout:
            return ""
        return run(["git", "-C", CHECKOUT, "rev-parse", "HEAD"]).stdout.strip()
    except ToolError:
        return ""


class Recorder:
    """Writes a line for the suite and a line for each test. Not for xdist's workers."""

    def __init__(self, suite: str, commit: str, *, complete: bool) -> None:
        """Begin the record anew if it is of another commit. `complete` says if all tests are asked for."""
        path = suites.record(CHECKOUT, suite)
        path.parent.mkdir(parents=True, exist_ok=True)
        before = suites.read(CHECKOUT, suite)
        self._stream: TextIO = path.open("a" if before and before.commit == commit else "w")
        self._complete = complete
        self._write(commit=commit)

    def _write(self, **line: str | int) -> None:
        self._stream.write(f"{json.dumps(line)}\n")
        self._stream.flush()

    def _collected(self, number: int) -> None:
        if self._complete:
            self._write(tests=number)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record how many tests there are."""
        if session.items:
            self._collected(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Record how many tests there are: with xdist, only its workers collect."""
        self._collected(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test: a setup or teardown counts only if it does not pass."""
        if report.when == "call" or report.outcome != "passed":
            self._write(id=report.nodeid, outcome=report.outcome)

    def pytest_sessionfinish(self) -> None:
        """Close the record."""
        self._stream.close()


def start(config: pytest.Config) -> None:
    """Select the tests of the suite that was asked for, and record them where the tree has no changes."""
    suite = config.getoption("suite")
    if not suite:
        return
    config.option.markexpr = suites.SUITES[suite]
    commit = "" if hasattr(config, "workerinput") else clean_commit()
    if commit and not config.getoption("collectonly"):
        given = [Path(argument).resolve() for argument in config.args]
        complete = given == [CHECKOUT / "tests"] and not config.getoption("keyword")
        config.pluginmanager.register(Recorder(suite, commit, complete=complete))
