# SPDX-License-Identifier: Apache-2.0
"""Which tests can notice a fault in a module: those whose imports lead to it, the nearest first."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "tegra_device_plugin"
ROLE_MODULE = re.compile(r"\w+/(library|module_utils|filter_plugins)/\w+\.py")
"""How a test names a role's module, for `load`."""


def distances(test: Path, checkout: Path) -> dict[Path, int]:
    """Modules of the plugin and of the roles that `test` imports: 0 directly, more by way of others."""
    found: dict[Path, int] = {}
    edge, distance = set(_imports(test, checkout)), 0
    while edge:
        found |= dict.fromkeys(edge, distance)
        edge = {module for reached in edge for module in _imports(reached, checkout)} - found.keys()
        distance += 1
    return found


def _imports(file: Path, checkout: Path) -> Iterator[Path]:
    """Modules that a file imports, in functions too, names for `python -m`, or has loaded."""
    plugin, roles = checkout / "plugin", checkout / "roles"
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        match node:
            case ast.Call(
                func=ast.Name("answer" | "run_module"),
                args=[ast.Constant(str(role)), ast.Constant(str(name)), *_],
            ):
                yield from roles.glob(f"{role}/library/{name}.py")
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
                yield from roles.glob(f"*/module_utils/{module.removeprefix('ansible.module_utils.')}.py")
            case ast.Constant(value=str(text)):
                names = [f"{PACKAGE}.__main__" if text == PACKAGE else text]
                if text.startswith(f"{PACKAGE}.") and text.endswith("."):  # import_module(f"PACKAGE.{...}")
                    yield from (plugin / text.replace(".", "/")).glob("*.py")
                if ROLE_MODULE.fullmatch(text) and (roles / text).is_file():
                    yield roles / text
        for name in names:
            if (
                name.startswith(f"{PACKAGE}.")
                and (found := plugin / f"{name.replace('.', '/')}.py").is_file()
            ):
                yield found
