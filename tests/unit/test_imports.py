# SPDX-License-Identifier: Apache-2.0
"""What the collection's Python imports: downward, in no circle. `lint-imports` does this for the plugin."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import CHECKOUT, markdown

PLUGINS = CHECKOUT / "plugins"
PREFIX = "ansible_collections.jetson_k3s.cluster.plugins."
# A module runs on a board, with what Ansible sends there: module_utils. The others run on the controller.
BELOW = {
    "action": {"plugin_utils"},
    "callback": {"plugin_utils"},
    "filter": {"plugin_utils"},
    "plugin_utils": {"plugin_utils", "module_utils"},
    "modules": {"module_utils"},
    "module_utils": {"module_utils"},
}
FILES = sorted(PLUGINS.glob("*/*.py"))


def name_of(path: Path) -> str:
    return f"{path.parent.name}.{path.stem}"


def imported(path: Path) -> Iterator[str]:
    """Files of the collection that a file imports: `module_utils.redact`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:  # of a file that the plugin has, too
            assert node.level == 1
            yield f"{path.parent.name}.{node.module}"
        if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith(PREFIX):
            continue
        below = f"{node.module}."[len(PREFIX) :].rstrip(".")
        if "." in below:
            yield below
        else:
            yield from (f"{below}.{one.name}" for one in node.names)


def test_every_folder_has_a_place() -> None:
    assert {path.parent.name for path in FILES} == BELOW.keys()


def test_the_drawing_has_the_imports_between_folders() -> None:
    block = next(
        block.text
        for block in markdown.read(CHECKOUT / "docs/architecture.md").blocks
        if block.language == "mermaid" and "plugin_utils" in block.text
    )
    drawn = {arrow.groups() for arrow in re.finditer(r"^ *(\w+)(?:\[.*?\])? --> (\w+)", block, re.MULTILINE)}
    found = {(path.parent.name, name.partition(".")[0]) for path in FILES for name in imported(path)}
    assert drawn == {(above, below) for above, below in found if above != below}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_imports_what_is_below_it(path: Path) -> None:
    names = set(imported(path))
    assert {name for name in names if not (PLUGINS / f"{name.replace('.', '/')}.py").exists()} == set()
    assert {name.partition(".")[0] for name in names} <= BELOW[path.parent.name]


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {name_of(path): set(imported(path)) for path in FILES}
    assert sum(map(len, graph.values())) > 100
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(FILES)
