# SPDX-License-Identifier: Apache-2.0
"""Which tests can notice a fault in a module: those whose imports lead to it, the nearest first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "tegra_device_plugin"


def distances(test: Path, plugin: Path) -> dict[Path, int]:
    """Modules below `plugin` that `test` imports: 0 directly, more by way of others."""
    found: dict[Path, int] = {}
    edge, distance = set(_imports(test, plugin)), 0
    while edge:
        found |= dict.fromkeys(edge, distance)
        edge = {module for reached in edge for module in _imports(reached, plugin)} - found.keys()
        distance += 1
    return found


def _imports(file: Path, plugin: Path) -> Iterator[Path]:
    """Modules of the package that a file imports, in functions too, or names for `python -m`."""
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Constant(value=str(text)):
                names = [f"{PACKAGE}.__main__" if text == PACKAGE else text]
                if text.startswith(f"{PACKAGE}.") and text.endswith("."):  # import_module(f"PACKAGE.{...}")
                    yield from (plugin / text.replace(".", "/")).glob("*.py")
        for name in names:
            if (
                name.startswith(f"{PACKAGE}.")
                and (found := plugin / f"{name.replace('.', '/')}.py").is_file()
            ):
                yield found
