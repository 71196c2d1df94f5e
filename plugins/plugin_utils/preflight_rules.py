# SPDX-License-Identifier: Apache-2.0
"""Rules and facts in, findings out: pure functions behind the preflight role.

A finding is a dict: id, level ('error', 'warning', or 'accepted' for an accepted warning), found,
expected, fix, url (its entry in docs/troubleshooting.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import host_kinds

Finding = dict[str, str]
Facts = dict[str, Any]

SEPARATOR = "."
GUIDE = "docs/troubleshooting.md"

# Of the findings of the code beside this file; all others of it are errors.
WARNINGS = {
    "clock-server-drift",
    "disk-eviction",
    "firewall-firewalld",
    "firewall-ufw",
    "image-cuda",
    "image-l4t",
    "image-server-cuda",
    "k3s-unread",
    "machine-id-duplicate",
    "name-unresolved",
    "network-range-shared",
    "toolkit-unknown",
    "packages-locked",
    "packages-sources-release",
    "packages-system",
    "packages-unreachable",
    "second-device-plugin-selects",
    "server-name-short",
}


def lookup(facts: Facts, path: str) -> Any:
    """Value at a dotted path, None where the path ends early."""
    value: Any = facts
    for key in path.split(SEPARATOR):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def version_key(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: 'v1.20.2+k3s1' and '1.20.2-ce' both give (1, 20, 2)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    return tuple(int(part) for part in match.group(1).split("."))


def known_version(value: Any) -> tuple[int, ...] | None:
    """The numbers of a version that a board has named, None for another text."""
    try:
        return version_key(str(value))
    except ValueError:
        return None


def not_older(value: Any, other: Any) -> bool:
    """Is a version the other one or newer? Not if one of them is none."""
    one, two = known_version(value), known_version(other)
    return one is not None and two is not None and one >= two


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "equals": lambda value, wanted: bool(value == wanted),
    "is_not": lambda value, wanted: bool(value != wanted),
    "without": lambda value, unwanted: not set(unwanted) & set(value or ()),
    "known": lambda value, wanted: (value is not None) == wanted,
    "one_of": lambda value, wanted: value in wanted,
    "at_least": lambda value, wanted: value is not None and value >= wanted,
    "includes": lambda value, wanted: value is not None and set(wanted) <= set(value),
    "matches": lambda value, wanted: re.fullmatch(wanted, str(value), re.ASCII) is not None,
    "some_match": lambda values, wanted: any(re.fullmatch(wanted, str(one)) for one in values or ()),
    "none_match": lambda values, wanted: not any(re.fullmatch(wanted, str(one)) for one in values or ()),
}
# Operators that compare with another fact.
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "same_as": lambda value, other: value is not None and bool(value == other),
    "among": lambda value, others: value in others,
    "not_older_than": not_older,
}
PLACEHOLDER = re.compile(r"\{([a-z][\w.-]*)\}")


def holds(condition: dict[str, Any], facts: Facts) -> bool:
    """Is one condition met: a `fact` and an operator, as vars/main/compatibility.yml explains them?

    None (unknown) meets only `equals: null`, `is_not`, `without` and `known: false`. To the operators for
    versions, a text that is no version is as unknown.
    """
    value = lookup(facts, condition["fact"])
    for operator, compare in COMPARISONS.items():
        if operator in condition:
            return compare(value, lookup(facts, condition[operator]))
    for operator, judge in OPERATORS.items():
        if operator in condition:
            return judge(value, condition[operator])
    key = known_version(value)
    return (
        key is not None
        and version_key(str(condition.get("from", "0"))) <= key
        and ("below" not in condition or key < version_key(str(condition["below"])))
    )


def guide(finding_id: str) -> str:
    """Where the handbook explains a finding; a heading's anchor has no dots."""
    return page(f"{GUIDE}#{finding_id.replace(SEPARATOR, '')}")


def shown(condition: dict[str, Any], facts: Facts) -> Any:
    """The value that a finding shows: of `without`, the unwanted keys with what stands there."""
    value = lookup(facts, condition["fact"])
    if "without" in condition:
        return "; ".join(f"{key} ({value[key]})" for key in condition["without"] if key in value)
    return value


def filled(text: str, facts: Facts, value: Any) -> str:
    """A rule's text with `value` and facts in the places of their names."""

    def fact(place: re.Match[str]) -> str:
        found = value if place[1] == "value" else lookup(facts, place[1])
        return ", ".join(map(str, found)) if isinstance(found, list) else str(found)

    return PLACEHOLDER.sub(fact, text)


def advice(fix: str | list[dict[str, Any]], facts: Facts) -> str:
    """The fix for one board: of a list, each `text` whose conditions (`when`) are all met there."""
    if isinstance(fix, str):
        return fix
    return " ".join(
        part["text"] for part in fix if all(holds(condition, facts) for condition in part.get("when", []))
    )


def findings_of_rules(facts: Facts, rules: list[dict[str, Any]]) -> list[Finding]:
    """A finding for each rule that applies (`kinds`, and all of `when`) and whose `require` is not met."""
    findings = []
    for rule in rules:
        applies = facts["host_kind"] in rule.get("kinds", host_kinds.KINDS) and all(
            holds(condition, facts) for condition in rule.get("when", [])
        )
        if not applies or holds(rule["require"], facts):
            continue
        value = shown(rule["require"], facts)
        texts = {"found": rule["found"], "expected": rule["expected"], "fix": advice(rule["fix"], facts)}
        findings.append(
            {"id": rule["id"], "level": rule.get("level", "error"), "url": guide(rule["id"])}
            | {name: filled(text, facts, value) for name, text in texts.items()}
        )
    return findings


def rules_of_kernel(entries: list[dict[str, Any]], fix: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rule for each entry of the kernel's table; a feature of which nothing is known breaks none."""
    return [
        {
            "id": f"kernel-{entry['feature'].replace('_', '-')}",
            "level": entry.get("level", "error"),
            "when": entry.get("when", []),
            "require": {"fact": "kernel_lacks", "without": entry.get("features", [entry["feature"]])},
            "found": f"{{value}}: {entry['without']}",
            "expected": "a kernel with these features, built in or as modules of the kernel that runs",
            "fix": entry.get("fix", fix),
        }
        for entry in entries
    ]


def complete(finding: Finding) -> Finding:
    """The finding of code, with its level and its entry in docs/troubleshooting.md."""
    level = "warning" if finding["id"] in WARNINGS else "error"
    return {"level": level, "url": guide(finding["id"])} | finding


def accept(findings: list[Finding], accepted: list[str], rules: list[dict[str, Any]]) -> list[Finding]:
    """All findings, complete; warnings whose id is accepted have that level. Other ids are errors."""
    warnings = WARNINGS | {rule["id"] for rule in rules if rule.get("level") == "warning"}
    strangers = [
        {
            "id": "accepted-unknown",
            "found": f"preflight_accepted has {name!r}",
            "expected": "ids of warnings (docs/troubleshooting.md has them)",
            "fix": "Take it out of preflight_accepted, or correct it.",
        }
        for name in accepted
        if name not in warnings
    ]
    completed = [entry if "level" in entry else complete(entry) for entry in strangers + findings]
    return [
        entry | {"level": "accepted"} if entry["level"] == "warning" and entry["id"] in accepted else entry
        for entry in completed
    ]


def report(findings: list[Finding], host: str, outcome: str = "nothing was changed on this board") -> str:
    """Findings as text for people: found, expected, what to do; accepted ones are left out."""
    findings = [entry for entry in findings if entry["level"] != "accepted"]
    count = "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
    lines = [f"{host}: preflight found {count}; {outcome}."]
    for number, entry in enumerate(findings, 1):
        lines.append(f"{number}. [{entry['level']}] {entry['id']}")
        lines.extend(f"   {key + ':':<10}{entry[key]}" for key in ("found", "expected", "fix", "url"))
    return "\n".join(lines)
