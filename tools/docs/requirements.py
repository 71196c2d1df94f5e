# SPDX-License-Identifier: Apache-2.0
"""Write preflight's rules and versions into docs/compatibility.md: `python -m tools.docs.requirements`."""

import re
import textwrap
from itertools import groupby
from typing import Any

import yaml

from tools.cache import CHECKOUT

PAGE = CHECKOUT / "docs/compatibility.md"
RULES = CHECKOUT / "roles/preflight/vars/main"
BEGIN = "<!-- {}, written by `python -m tools.docs.requirements` -->"
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


def releases_of_etcd() -> str:
    """A row for each release of K3s from which on it has another etcd."""
    table = yaml.safe_load((RULES / "etcd.yml").read_text())["__preflight_etcd"]
    rows = [f"| {entry['k3s']} | {entry['etcd']} |" for entry in table]
    return "\n".join(["", "| from K3s | etcd |", "|---|---|", *rows, ""])


def written(page: str) -> str:
    """The page with each part between its two marks."""
    for name, text in (("requirements", requirements()), ("etcd", releases_of_etcd())):
        begin = BEGIN.format(name)
        before, rest = page.split(begin)
        _, after = rest.split(END, 1)
        page = f"{before}{begin}\n{text}\n{END}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
