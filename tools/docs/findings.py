# SPDX-License-Identifier: Apache-2.0
"""What preflight requires, in words: docs/troubleshooting.md by finding, docs/compatibility.md by version."""

import ast
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.docs.markdown import anchor, wrapped

# The first item below a finding's heading, and an item of findings that share a heading with others.
BELOW_HEADING = r"### (?P<heading>.+)\n\n(?:\* \*\*(?:Error|Warning)\b.*\n(?:  .*\n)*)?"
WITH_ANCHORS = r'\* <a id="(?P<anchor>[^"]+)"></a>.*\n(?:  .*\n)*'
PLACE = re.compile(f"^(?:{BELOW_HEADING}|{WITH_ANCHORS})", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
REFERENCE = re.compile(r" \[More\]\(\S+\)\.")


def sentences(rule: dict[str, Any], required: str) -> str:
    """Level and requirement of a rule, and a link where it has a reference."""
    without = f" Without it, {rule['without']}." if "without" in rule else ""
    reference = f" [More]({rule['reference']})." if "reference" in rule else ""
    return f"**{rule.get('level', 'error').capitalize()}.** Required: {required}.{without}{reference}"


def constant(path: Path, name: str) -> Any:
    """A literal of a Python file, which need not be importable here."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(f"{path} has no {name}")


def kernel_options(roles: Path) -> dict[str, str]:
    """By feature of the kernel, the option that brings it and its module."""
    found = constant(roles / "jetson_facts/module_utils/jetson_kernel.py", "KERNEL_FEATURES")
    return {
        name: f"{' or '.join(f'CONFIG_{option}' for option in options)} ({' or '.join(modules)})"
        for name, (options, modules) in found.items()
    }


def findings(roles: Path) -> dict[str, str]:
    """All findings of preflight by their ids: level and requirement in words."""
    data = roles / "preflight/vars/main"
    rules = yaml.safe_load((data / "compatibility.yml").read_text())["__preflight_rules"]
    kernel = yaml.safe_load((data / "kernel.yml").read_text())["__preflight_kernel"]
    options = kernel_options(roles)
    coded = runpy.run_path(str(roles / "preflight/filter_plugins/preflight.py"))["CODED"]
    return {
        **{rule["id"]: sentences(rule, rule["expected"]) for rule in rules},
        **{
            f"kernel-{entry['feature'].replace('_', '-')}": sentences(
                entry, ", ".join(options[name] for name in entry.get("features", [entry["feature"]]))
            )
            for entry in kernel
        },
        **{name: f"**{level.capitalize()}:** {text}." for name, (level, text) in coded.items()},
    }


def put_findings_in(document: str, found: Mapping[str, str]) -> str:
    """The document with the words of each finding below its heading, or in its item.

    A reference is left out where the item before has it, too. ValueError where findings of one item differ.
    """
    ids = {anchor(name): name for name in found}
    reference = ""

    def text(*names: str) -> str:
        nonlocal reference
        (words,) = {found[name] for name in names}
        before, reference = reference, "".join(REFERENCE.findall(words))
        return words.replace(before, "") if before else words

    def put(match: re.Match[str]) -> str:
        nonlocal reference
        heading = match["heading"]
        if heading:
            reference = ""
            return f"### {heading}\n\n{wrapped(f'* {text(heading)}')}\n" if heading in found else match[0]
        anchors = ANCHOR.findall(match[0])
        names = ", ".join(f'<a id="{one}"></a>`{ids[one]}`' for one in anchors)
        return wrapped(f"* {names}: {text(*(ids[one] for one in anchors))}") + "\n"

    return PLACE.sub(put, document)


def toolkits(roles: Path) -> str:
    """One item per range of the toolkit's releases."""
    data = yaml.safe_load((roles / "preflight/vars/main/toolkit.yml").read_text())["__preflight_toolkits"]
    return "\n".join(
        wrapped(
            f"* [{entry['from']} {'to below ' + entry['below'] if 'below' in entry else 'and newer'}]"
            f"({entry['reference']}), for JetPack {entry['jetpack']}. Libraries: {entry['lists']}. "
            f"Strict mode: {entry['strict']}. Groups for a user that is not root: {entry['groups']}."
        )
        for entry in data
    )


def releases(jetpack: Mapping[str, str]) -> str:
    """One item per minor release of JetPack, the newest first: its patches, with their releases of L4T."""
    by_jetpack: dict[str, list[str]] = {}
    for l4t, name in jetpack.items():
        by_jetpack.setdefault(name, []).append(l4t)
    by_minor: dict[str, list[str]] = {}
    for name, releases_of_l4t in reversed(by_jetpack.items()):
        by_minor.setdefault(name[:3], []).append(f"{name} ({', '.join(releases_of_l4t)})")
    return "\n".join(wrapped(f"* {', '.join(names)}") for names in by_minor.values())
