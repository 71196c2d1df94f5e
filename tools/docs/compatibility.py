# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md: the matrix that preflight judges by, in words."""

import re
import runpy
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.docs.anchors import anchor
from tools.docs.sources import constant

# Facts by the names that people know them by.
NAMES = {
    "bundle.k3s_version": "K3s",
    "cgroup_lacks": "missing cgroup controllers",
    "cgroup_version": "cgroup version",
    "controller.ansible_core": "ansible-core",
    "docker.version": "Docker",
    "jetpack": "JetPack",
    "memory_bytes": "bytes of memory",
    "nvidia_runtime.version": "NVIDIA's container toolkit",
    "python": "the board's Python",
    "strict": "`nvidia_docker_strict`",
}
HEAD = """\
# Compatibility: what preflight judges by

Ask preflight whether your boards and your bundle go together. It changes nothing:

```sh
ansible-playbook -i inventory playbooks/preflight.yml
```

On this page:

* [Versions and the board's state](#versions-and-the-boards-state)
* [What a container gets of the board](#what-a-container-gets-of-the-board)
* [Kernel features](#kernel-features)
* [Inventory, bundle, token, a foreign K3s](#inventory-bundle-token-a-foreign-k3s)
* [JetPack releases that are known](#jetpack-releases-that-are-known)

What the levels mean:

* An **error** stops a board before anything on it is touched.
* A **warning** is shown. If you know it, accept it with `preflight_accepted: [id]`.

`python -m tools.docs` writes this page.
Its data are those that the role [preflight](../roles/preflight/) judges by.
"""
CONTAINERS = """\
NVIDIA's container toolkit decides. It mounts libraries of the board into containers by lists: the files
`*.csv` in `/etc/nvidia-container-runtime/host-files-for-container.d`. In strict mode only pods that ask
for a GPU get it.
"""
LINE = 119  # characters; tests/docs/test_markdown.py
CODE = re.compile("`[^`]+`")
UNBROKEN = "\0"


def in_words(value: Any) -> str:
    """A value of `equals`."""
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return str(value).lower()
    return "empty" if value == [] else str(value)


# The operators of preflight's filter plugin, all but from and below.
WORDS: dict[str, Callable[[str, Any], str]] = {
    "equals": lambda name, value: f"{name} is {in_words(value)}",
    "is_not": lambda name, value: f"{name} is not {in_words(value)}",
    "same_as": lambda name, value: f"{name} is the same as {NAMES.get(value, f'`{value}`')}",
    "known": lambda name, value: f"{name} is {'' if value else 'not '}known",
    "one_of": lambda name, value: f"{name} is one of {', '.join(map(str, value))}",
    "at_least": lambda name, value: f"at least {value:,} {name}".replace(",", " "),
    "includes": lambda name, value: f"{name} include {', '.join(value)}",
    "without": lambda name, value: f"{name}: none of {', '.join(value)}",
}


def condition(entry: dict[str, Any]) -> str:
    name = NAMES.get(entry["fact"], f"`{entry['fact']}`")
    for operator, say in WORDS.items():
        if operator in entry:
            return say(name, entry[operator])
    if "from" in entry and "below" in entry:
        return f"{name} {entry['from']} to below {entry['below']}"
    return f"{name} {entry['from']} or newer" if "from" in entry else f"{name} below {entry['below']}"


def linked(text: str, reference: str | None) -> str:
    """Text with a link to where one can read more."""
    return f"{text} ([more]({reference}))" if reference else text


def fix_in_words(fix: str | list[dict[str, Any]]) -> str:
    """The fix, with the boards that each part of it is for."""
    if isinstance(fix, str):
        return fix
    return " ".join(f"{places(part)}{part['text'].removesuffix('.')}." for part in fix)


def places(part: dict[str, Any]) -> str:
    """The boards that a part of a fix is for; empty for all."""
    return f"Where {where(part)}: " if "when" in part else ""


def item(title: str, **details: str) -> str:
    """An item of a list, and below it what there is to say about it; an empty detail is left out."""
    told = {name.replace("_", " "): detail for name, detail in details.items() if detail}
    lines = [f"* {title}", *(f"  * {name}: {detail}" for name, detail in told.items())]
    return "\n".join(wrapped(line) for line in lines)


def wrapped(line: str) -> str:
    """An item's line as several, indented as what they belong to; inline code stays on one line."""
    whole = CODE.sub(lambda code: code[0].replace(" ", UNBROKEN), line)
    indent = " " * (line.index("*") + 2)
    lines = textwrap.fill(
        whole, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace(UNBROKEN, " ")


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def entry(finding: str) -> str:
    """A finding's id, with a link to its entry in the handbook."""
    return f"[`{finding}`](troubleshooting.md#{anchor(finding)})"


def where(rule: dict[str, Any]) -> str:
    """Where a rule applies; empty for everywhere."""
    return " and ".join(map(condition, rule.get("when", [])))


def releases(jetpack: Mapping[str, str]) -> list[tuple[str, ...]]:
    """One row per JetPack, the newest first: its releases of L4T."""
    by_jetpack: dict[str, list[str]] = {}
    for l4t, name in jetpack.items():
        by_jetpack.setdefault(name, []).append(l4t)
    return [(name, ", ".join(l4t)) for name, l4t in reversed(by_jetpack.items())]


def kernel_options(roles: Path) -> dict[str, str]:
    """By feature of the kernel, the option that brings it and its module."""
    found = constant(roles / "jetson_facts/module_utils/jetson_kernel.py", "KERNEL_FEATURES")
    return {
        name: f"{' or '.join(f'CONFIG_{option}' for option in options)} ({' or '.join(modules)})"
        for name, (options, modules) in found.items()
    }


def toolkits(data: Iterable[Mapping[str, str]]) -> list[str]:
    """One item per range of the toolkit's releases."""
    return [
        item(
            f"{entry['from']} to below {entry['below']}"
            if "below" in entry
            else f"{entry['from']} and newer",
            JetPack=entry["jetpack"],
            lists_of_libraries=entry["lists"],
            strict_mode=entry["strict"],
            groups_for_a_user_that_is_not_root=entry["groups"],
            source=f"<{entry['reference']}>",
        )
        for entry in data
    ]


def render(roles: Path, jetpack: Mapping[str, str]) -> str:
    """The whole document; `jetpack` is the catalogue's, by L4T release, the oldest first."""
    data = roles / "preflight/vars/main"
    rules = yaml.safe_load((data / "compatibility.yml").read_text())["__preflight_rules"]
    kernel = yaml.safe_load((data / "kernel.yml").read_text())["__preflight_kernel"]
    options = kernel_options(roles)
    toolkit = yaml.safe_load((data / "toolkit.yml").read_text())["__preflight_toolkits"]
    coded = runpy.run_path(str(roles / "preflight/filter_plugins/preflight.py"))["CODED"]
    rule_items = [
        item(
            f"{entry(rule['id'])}, {rule['level']}",
            where=where(rule),
            must_hold=condition(rule["require"]),
            fix=linked(fix_in_words(rule["fix"]), rule.get("reference")),
        )
        for rule in rules
    ]
    kernel_items = [
        item(
            f"{entry('kernel-' + feature['feature'].replace('_', '-'))}, {feature['level']}",
            where=where(feature),
            options=", ".join(options[name] for name in feature.get("features", [feature["feature"]])),
            without_it=feature["without"],
            fix=linked(fix_in_words(feature["fix"]), feature.get("reference")),
        )
        for feature in kernel
    ]
    coded_items = [item(f"{entry(name)}, {level}: {text}") for name, (level, text) in sorted(coded.items())]
    return "\n".join(
        [
            HEAD,
            "## Versions and the board's state\n",
            "A rule without a `where` holds for every board.\n",
            *rule_items,
            "\n## What a container gets of the board\n",
            CONTAINERS,
            *toolkits(toolkit),
            "\n## Kernel features\n",
            "A feature is no finding if the board does not tell whether its kernel has it.\n"
            "Each option has its module in brackets.\n",
            *kernel_items,
            "\n## Inventory, bundle, token, a foreign K3s\n",
            *coded_items,
            "\n## JetPack releases that are known\n",
            "A release that is not listed gets what is certain after the nearest earlier one:\n"
            "`6.2` for another patch, `6` for another minor release.\n",
            table(("JetPack", "L4T"), releases(jetpack)),
            "",
        ]
    )
