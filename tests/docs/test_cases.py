# SPDX-License-Identifier: Apache-2.0
"""Every command of the documents is tried in one way, and that is said truthfully."""

import ast
from collections import Counter

import pytest

from tests.docs import CHECKOUT, commands
from tests.docs.commands import BY_TESTS, CASES, ON_BOARDS, Case


def test_every_command_of_the_documents_is_tried_in_one_way_and_no_other() -> None:
    tried, written = Counter(case.command for case in CASES), commands.collect()
    missing = {command: where for command, where in written.items() if command not in tried}
    assert missing == {}, "say in tests/docs/cases.yml how they are tried"
    assert [command for command, count in tried.items() if command not in written or count > 1] == []


def test_another_form_does_something_and_has_its_reason() -> None:
    assert [case.command for case in ON_BOARDS if bool(case.run) != bool(case.why)] == []
    nothing = (" --help", " -h", " --version", " --collect-only", " --syntax-check", " --list-tasks")
    assert [case.run for case in ON_BOARDS if case.run.endswith(nothing)] == []


@pytest.mark.parametrize("case", BY_TESTS, ids=lambda case: case.command)
def test_the_test_that_runs_a_command_exists(case: Case) -> None:
    file, _, name = case.test.partition("::")
    functions = [
        node.name
        for node in ast.parse((CHECKOUT / file).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert name in functions
