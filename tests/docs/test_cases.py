# SPDX-License-Identifier: Apache-2.0
"""Every command of the documents is tried in one way, and that is said truthfully."""

import ast
from collections import Counter

import pytest

from tests.docs import CHECKOUT, commands
from tests.docs.cases import CASES, Case


def test_every_command_of_the_documents_is_tried() -> None:
    tried = {case.command for case in CASES}
    missing = {command: where for command, where in commands.collect().items() if command not in tried}
    assert missing == {}, "say in tests/docs/cases.py how they are tried"


def test_nothing_is_tried_that_no_document_has() -> None:
    assert [case.command for case in CASES if case.command not in commands.collect()] == []


def test_no_command_is_tried_in_two_ways() -> None:
    assert [command for command, count in Counter(case.command for case in CASES).items() if count > 1] == []


def test_another_form_has_its_reason() -> None:
    assert [case.command for case in CASES if case.run and not case.why] == []


def test_no_form_is_one_that_does_nothing() -> None:
    assert [
        case.run for case in CASES if case.run.endswith((" --help", " -h")) or "--list-tasks" in case.run
    ] == []


@pytest.mark.parametrize("case", [case for case in CASES if case.test], ids=lambda case: case.command)
def test_the_test_that_runs_a_command_exists(case: Case) -> None:
    file, _, name = case.test.partition("::")
    functions = [
        node.name
        for node in ast.parse((CHECKOUT / file).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert name in functions
