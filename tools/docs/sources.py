# SPDX-License-Identifier: Apache-2.0
"""What documents read of the roles: constants of their Python files, and variables."""

import ast
import re
from pathlib import Path
from typing import Any

import yaml

PLACEHOLDER = re.compile(r"\{\{ *(\w+)?.*?\}\}")


def constant(path: Path, name: str) -> Any:
    """Return a literal of a Python file, which need not be importable here."""
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign):
            continue
        names = ast.unparse(node.targets[0]).strip("()").split(", ")
        if name in names:
            value = ast.literal_eval(node.value)
            return value[names.index(name)] if len(names) > 1 else value
    raise KeyError(f"{path} has no {name}")


def variables(role: Path) -> dict[str, Any]:
    """Return the internal variables of a role."""
    path = role / "vars/main.yml"
    return (yaml.safe_load(path.read_text()) if path.exists() else None) or {}


def pattern(role: Path, name: str) -> str:
    """Return a variable that has a path as a pattern: `*` stands for what the board or the owner decides."""
    known = variables(role)

    def resolved(text: str) -> str:
        return PLACEHOLDER.sub(
            lambda match: resolved(str(known[match[1]])) if match[1] in known else "*", text
        )

    return resolved(known[name])
