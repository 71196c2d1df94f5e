# SPDX-License-Identifier: Apache-2.0
"""Rules about NVIDIA's config.toml, from the table of its keys (vars/main/toolkit.yml)."""

from __future__ import annotations

from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import host_kinds
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.preflight_rules import (
    Facts,
    Finding,
    lookup,
)

FILE = "/etc/nvidia-container-runtime/config.toml"
CONFIG = "nvidia_runtime.config"
TEGRA = {"fact": "platform", "equals": "tegra"}
KINDS = [host_kinds.BOARD]
# Rules about a file that cannot be read.
OF_THE_FILE = [
    {
        "id": "toolkit-broken",
        "kinds": KINDS,
        "when": [TEGRA],
        "require": {"fact": f"{CONFIG}.broken", "equals": None},
        "found": f"{FILE} is no TOML ({{value}}): NVIDIA's runtime starts no container",
        "expected": "a file that the runtime can read",
        "fix": f"Correct the line of {FILE} that is named. Without the file, the runtime has its defaults.",
    },
    {
        "id": "toolkit-unread",
        "level": "warning",
        "kinds": KINDS,
        "when": [TEGRA],
        "require": {"fact": f"{CONFIG}.unread", "equals": None},
        "found": f"{FILE} has TOML that preflight does not read ({{value}}): its keys were not judged",
        "expected": "strings, numbers, true, false and lists in plain tables, as NVIDIA writes them",
        "fix": f"Write the line of {FILE} that is named in such a form, or accept the warning.",
    },
]


def rules_of_toolkit(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rules for the keys of which a value is a finding, and for the file as such."""
    rules = []
    for entry in entries:
        if entry["verdict"] != "finding":
            continue
        at_path = {"fact": f"{CONFIG}.problems.{entry['key']}", "equals": None}
        of_value = {"fact": f"{CONFIG}.values.{entry['key']}", **entry.get("require", {})}
        texts = {name: entry[name] for name in ("id", "found", "expected", "fix")}
        rules.append(
            texts
            | {
                "kinds": KINDS,
                "level": entry.get("level", "error"),
                "when": [TEGRA, *entry.get("when", [])],
                "require": at_path if entry.get("path") else of_value,
            }
        )
    return [*OF_THE_FILE, *rules]


def findings_of_toolkit(facts: Facts, entries: list[dict[str, Any]]) -> list[Finding]:
    """Keys that are not in the table: typing errors, which NVIDIA's programs ignore, or newer ones."""
    known = {entry["key"] for entry in entries}
    unknown = [key for key in lookup(facts, f"{CONFIG}.keys") or () if key not in known]
    if not unknown:
        return []
    return [
        {
            "id": "toolkit-unknown",
            "found": f"keys in {FILE} that preflight does not know: {', '.join(unknown)}",
            "expected": "keys of NVIDIA's toolkit, which ignores others silently",
            "fix": "Correct the names. If a newer toolkit has them, accept the warning.",
        }
    ]
