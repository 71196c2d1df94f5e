# SPDX-License-Identifier: Apache-2.0
"""Write what preflight's rules require into docs/compatibility.md: `python -m tools.docs.requirements`."""

import re
import textwrap
from itertools import groupby
from typing import Any

import yaml

from tools.cache import CHECKOUT

PAGE = CHECKOUT / "docs/compatibility.md"
RULES = CHECKOUT / "roles/preflight/vars/main"
BEGIN = "<!-- written by `python -m tools.docs.requirements` -->"
END = "<!-- end -->"
WIDTH = 118
FACT = re.compile(r"\{([\w.]+)\}")


def rules() -> list[dict[str, Any]]:
    tables = (("compatibility", "__preflight_rules"), ("inventory", "__preflight_inventory_rules"))
    found: list[dict[str, Any]] = []
    for file, name in tables:
        found += yaml.safe_load((RULES / f"{file}.yml").read_text())[name]
    return found


def requirements() -> str:
    """A line for each requirement, with the findings that say it. Facts of a board stand in `code`."""
    lines = []
    for (level, expected), same in groupby(
        rules(), key=lambda rule: (rule.get("level", "error"), rule["expected"])
    ):
        links = [f"[`{rule['id']}`](troubleshooting.md#{rule['id'].replace('.', '')})" for rule in same]
        required = FACT.sub(r"`\1`", expected)
        text = f"{', '.join(links)} ({level}): {required}."
        lines.append(
            textwrap.fill(text, WIDTH, initial_indent="* ", subsequent_indent="  ", break_on_hyphens=False)
        )
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the requirements between its two marks."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{requirements()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
