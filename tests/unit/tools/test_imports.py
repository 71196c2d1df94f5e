# SPDX-License-Identifier: Apache-2.0
"""What is shipped needs no test to be built."""

import ast
from pathlib import Path

import pytest

from tools.cache import CHECKOUT

FOLDERS = ("collection", "images", "playbooks", "plugin", "release", "roles", "tools")


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_but_tests_imports_tests(folder: str) -> None:
    def imported(file: Path) -> set[str]:
        found = ast.walk(ast.parse(file.read_text()))
        modules = [node.module or "" for node in found if isinstance(node, ast.ImportFrom)]
        return {name for name in modules if name.split(".")[0] == "tests"}

    assert {file: names for file in (CHECKOUT / folder).rglob("*.py") if (names := imported(file))} == {}
