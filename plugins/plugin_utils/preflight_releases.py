# SPDX-License-Identifier: Apache-2.0
"""Rules from the table of known-bad releases (vars/main/bad_releases.yml)."""

from __future__ import annotations

from typing import Any


def rules_of_releases(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rule for each entry: it applies from the first bad release on, and requires one outside of the range.

    A release that is not known breaks none.
    """
    return [
        {name: entry[name] for name in ("id", "kinds") if name in entry} | rule(entry) for entry in entries
    ]


def rule(entry: dict[str, Any]) -> dict[str, Any]:
    """The rule of one entry, without its id."""
    return {
        "level": entry.get("level", "error"),
        "when": [
            *entry.get("when", []),
            {"fact": entry["fact"], "from": entry["from"], "below": entry["below"]},
        ],
        "require": {"fact": entry["fact"], "below": entry["from"]},
        "found": f"{entry['program']} {{value}}: {entry['happens']}",
        "expected": entry.get("expected") or outside(entry),
        "fix": with_release(entry["fix"], entry["below"]),
    }


def outside(entry: dict[str, Any]) -> str:
    """The good releases, in words."""
    return f"{entry['program']} older than {entry['from']}, or {entry['below']} and newer"


def with_release(fix: Any, below: str) -> Any:
    """The fix with the first good release in the place of its name."""
    if isinstance(fix, str):
        return fix.replace("{below}", below)
    return [part | {"text": part["text"].replace("{below}", below)} for part in fix]
