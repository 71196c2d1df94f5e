# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md: the matrix that preflight judges by, as tables."""

import runpy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.docs.markdown import anchor

# Facts by the names that people know them by.
NAMES = {
    "bundle.k3s_version": "K3s",
    "cgroup_controllers": "cgroup controllers",
    "cgroup_version": "cgroup version",
    "clock": "the clock",
    "controller.ansible_core": "ansible-core",
    "disk_free_bytes": "bytes free for Docker's data",
    "docker.version": "Docker",
    "jetpack": "JetPack",
    "memory_bytes": "bytes of memory",
    "nvidia_runtime.version": "NVIDIA's container toolkit",
    "python": "the board's Python",
}
HEAD = """\
# Compatibility: what preflight judges by

Written by `python -m tests.docs` from the data that the role [preflight](../roles/preflight/) compares every
board with. An **error** stops a board before anything on it is touched. A **warning** is shown; one that is
known is accepted with `preflight_accepted: [id]`. What a board does not tell is not held against its kernel.
"""


def cell(text: str) -> str:
    """Text that is safe inside a table."""
    return " ".join(text.split()).replace("|", "\\|")


def in_words(value: Any) -> str:
    """A value of `equals`."""
    if value == []:
        return "empty"
    return {None: "absent", True: "true", False: "false"}.get(value, str(value))


# The operators of preflight's filter plugin, all but from and below.
WORDS: dict[str, Callable[[str, Any], str]] = {
    "equals": lambda name, value: f"{name} is {in_words(value)}",
    "same_as": lambda name, value: f"{name} is the same as {NAMES.get(value, f'`{value}`')}",
    "known": lambda name, value: f"{name} is {'' if value else 'not '}known",
    "one_of": lambda name, value: f"{name} is one of {', '.join(map(str, value))}",
    "at_least": lambda name, value: f"at least {value:,} {name}".replace(",", " "),
    "includes": lambda name, value: f"{name} include {', '.join(value)}",
}


def condition(entry: dict[str, Any]) -> str:
    """A condition in words."""
    name = NAMES.get(entry["fact"], f"`{entry['fact']}`")
    for operator, say in WORDS.items():
        if operator in entry:
            return say(name, entry[operator])
    if "from" in entry and "below" in entry:
        return f"{name} {entry['from']} to below {entry['below']}"
    return f"{name} {entry['from']} or newer" if "from" in entry else f"{name} below {entry['below']}"


def linked(text: str, url: str | None) -> str:
    """Text with a link to where one can read more."""
    return f"{cell(text)} ([more]({url}))" if url else cell(text)


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def entry(finding: str) -> str:
    """A finding's id, with a link to its entry in the handbook."""
    return f"[`{finding}`](troubleshooting.md#{anchor(finding)})"


def releases(jetpack: dict[str, str]) -> list[tuple[str, ...]]:
    """One row per JetPack: its releases of L4T."""
    by_jetpack: dict[str, list[str]] = {}
    for l4t, name in jetpack.items():
        by_jetpack.setdefault(name, []).append(l4t)
    return [(name, ", ".join(sorted(l4t))) for name, l4t in by_jetpack.items()]


def render(roles: Path) -> str:
    """The whole document."""
    data = roles / "preflight/vars/main"
    rules = yaml.safe_load((data / "compatibility.yml").read_text())["__preflight_rules"]
    kernel = yaml.safe_load((data / "kernel.yml").read_text())["__preflight_kernel"]
    coded = runpy.run_path(str(roles / "preflight/filter_plugins/preflight.py"))["CODED"]
    jetpack = runpy.run_path(str(roles / "jetson_facts/module_utils/jetson_board.py"))["JETPACK"]
    always = "always"
    rule_rows = [
        (
            entry(rule["id"]),
            rule["level"],
            ", ".join(map(condition, rule.get("when", []))) or always,
            condition(rule["require"]),
            linked(rule["fix"], rule.get("url")),
        )
        for rule in rules
    ]
    kernel_rows = [
        (
            entry(f"kernel-{feature['feature'].replace('_', '-')}"),
            feature["level"],
            ", ".join(map(condition, feature.get("when", []))) or always,
            cell(feature["option"]),
            cell(feature["without"]),
            linked(feature["fix"], feature.get("url")),
        )
        for feature in kernel
    ]
    coded_rows = [(entry(name), level, cell(text)) for name, (level, text) in sorted(coded.items())]
    return "\n".join(
        [
            HEAD,
            "## Versions and the board's state\n",
            table(("id", "level", "where", "must hold", "otherwise"), rule_rows),
            "\n## Kernel features\n",
            table(("id", "level", "where", "option", "without it", "then"), kernel_rows),
            "\n## Inventory, bundle, token, K3s of another hand\n",
            table(("id", "level", "what"), coded_rows),
            "\n## JetPack releases that are known\n",
            "A patch release that is not listed counts as the newest listed one of its branch.\n",
            table(("JetPack", "L4T"), releases(jetpack)),
            "",
        ]
    )
