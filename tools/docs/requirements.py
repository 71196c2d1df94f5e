# SPDX-License-Identifier: Apache-2.0
"""Write preflight's rules and versions into docs/compatibility.md: `python -m tools.docs.requirements`."""

import re
import textwrap
from itertools import groupby
from typing import Any

import yaml

from tools.cache import CHECKOUT
from tools.docs import matrix

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


def link(finding: str) -> str:
    return f"[`{finding}`](troubleshooting.md#{finding.replace('.', '')})"


def item(text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent="* ",
        subsequent_indent="  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop. Facts of a board stand in `code`."""
    return FACT.sub(r"`\1`", text[0].upper() + text[1:]) + "."


def bad_releases() -> str:
    """An item for each known-bad release."""
    items = []
    for entry in yaml.safe_load((RULES / "bad_releases.yml").read_text())["__preflight_bad_releases"]:
        source = re.sub("/(issues|pull)/", "#", entry["source"].removeprefix("https://github.com/"))
        source = re.sub("/blob/(.*)/CHANGELOG.md", r" \1, change log", source)
        where = (
            f"{entry['program']} from {entry['from']} to below {entry['below']}. Boards: {entry['boards']}."
        )
        of = f"{link(entry['id'])} ({entry.get('level', 'error')})"
        items.append(item(f"{of}: {where} {sentence(entry['happens'])} See [{source}]({entry['source']})."))
    return "\n".join(["", *items, ""])


def toolkit_keys() -> str:
    """An item for each key of NVIDIA's config.toml."""
    by_key: dict[str, list[str]] = {}
    for entry in yaml.safe_load((RULES / "toolkit.yml").read_text())["__preflight_toolkit"]:
        verdict = (
            f"{link(entry['id'])} ({entry.get('level', 'error')})" if "id" in entry else entry["verdict"]
        )
        read = [f"from {entry['since']} on"] if "since" in entry else []
        read += [f"before {entry['until']}"] if "until" in entry else []
        releases = f" Toolkits {' '.join(read)} read it." if read else ""
        text = f"{verdict}. {sentence(entry['reason'])}{releases}"
        by_key.setdefault(entry["key"], []).append(text)
    return "\n".join(["", *(item(f"`{key}`: {' '.join(texts)}") for key, texts in by_key.items()), ""])


def written(page: str) -> str:
    """The page with each part between its two marks."""
    parts = {
        "matrix": matrix.table(),
        "requirements": requirements(),
        "bad releases": bad_releases(),
        "keys of config.toml": toolkit_keys(),
        "etcd": releases_of_etcd(),
    }
    for name, text in parts.items():
        begin = BEGIN.format(name)
        before, rest = page.split(begin)
        _, after = rest.split(END, 1)
        page = f"{before}{begin}\n{text}\n{END}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
