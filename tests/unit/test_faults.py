# SPDX-License-Identifier: Apache-2.0
"""The list of faults fits the roles and playbooks, and the tests that should notice them are there."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.faults import Fault, load

FAULTS = {fault.name: fault for fault in load()}


def test_names_are_unique() -> None:
    assert len(FAULTS) == len(list(load()))


# What a file says, in a form that is equal for two texts that mean the same.
MEANING: dict[str, Callable[[str], object]] = {
    ".py": lambda text: ast.dump(ast.parse(text)),
    ".yml": yaml.safe_load,
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_can_be_applied(name: str) -> None:
    """Its right text is there once, and Ansible could load the wrong file."""
    fault = FAULTS[name]
    right, wrong = (CHECKOUT / fault.file).read_text(), fault.applied(CHECKOUT)
    meaning = MEANING[Path(fault.file).suffix]
    assert meaning(right) != meaning(wrong)


@pytest.mark.parametrize("name", FAULTS)
def test_tests_of_a_fault_exist(name: str) -> None:
    assert FAULTS[name].tests
    for test in FAULTS[name].tests:
        path, _, function = test.partition("::")
        tree = ast.parse((CHECKOUT / path).read_text())
        functions = {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert not function or function.partition("[")[0] in functions, test


def test_text_that_is_missing_or_not_unique_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("one two two")
    assert Fault("n", "a.yml", "one", "two", ()).applied(tmp_path) == "two two two"
    for right in ("two", "three"):
        with pytest.raises(ValueError, match=f"n: a.yml has '{right}'"):
            Fault("n", "a.yml", right, "", ()).applied(tmp_path)
