# SPDX-License-Identifier: Apache-2.0
"""Rules and facts in, findings out: pure functions behind the preflight role.

A finding is a dict: id, level ('error', 'warning', or 'accepted' for an accepted warning), found,
expected, fix, url (its entry in docs/troubleshooting.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Finding = dict[str, str]
Facts = dict[str, Any]

SEPARATOR = "."
GUIDE = "docs/troubleshooting.md"

# What needs more than one board's facts, with its level: the code beside this file finds it, not the matrix.
CODED = {
    "accepted-unknown": ("error", "a finding is accepted that does not exist"),
    "bundle-file": ("error", "a file of the bundle is missing or not what SHA256SUMS says"),
    "bundle-unusable": ("error", "the complete bundle is missing or damaged"),
    "clock": ("error", "a clock is more than a day away from that of the controller"),
    "clock-server": ("error", "a clock is more than 5 minutes away from that of the K3s server"),
    "clock-server-drift": ("warning", "a clock is more than a minute away from that of the K3s server"),
    "disk-eviction": ("warning", "so little is free that the kubelet evicts pods"),
    "disk-full": ("error", "less is free than an installation takes"),
    "disk-volatile": ("error", "the data of K3s or Docker would be lost at a reboot, or cannot be written"),
    "firewall-firewalld": ("warning", "firewalld keeps out what K3s needs"),
    "firewall-ufw": ("warning", "ufw keeps out what K3s needs"),
    "group-both": ("error", "a board is server and agent in the inventory"),
    "group-none": ("error", "a board is neither server nor agent in the inventory"),
    "hostname-duplicate": ("error", "two boards, or a board and another's node, have one name"),
    "hostname-invalid": ("error", "a hostname cannot be a node's name"),
    "image-supply-containerd": ("error", "a board supplies images, and containerd runs the pods"),
    "image-supply-host": ("error", "the board that supplies images is none of the cluster"),
    "join-token": ("error", "the running server does not take the token"),
    "join-token-weak": ("warning", "a given token is short"),
    "k3s-foreign-unit": ("error", "K3s' unit carries flags"),
    "k3s-newer": ("error", "K3s is newer than the one that would be installed"),
    "k3s-option": ("error", "a setting would make the board another node than the roles expect"),
    "k3s-other-role": ("error", "K3s runs in the other role"),
    "k3s-unread": ("warning", "a file of K3s' settings is not understood"),
    "k3s-runtime": ("error", "K3s of another installation has another container runtime"),
    "k3s-upgrade": ("error", "K3s would get another minor version, for which upgrade.yml is"),
    "machine-id-duplicate": ("warning", "two boards, or a board and another's node, have one machine-id"),
    "network-range": ("error", "a board without K3s is in a network of pods or services"),
    "network-range-shared": ("warning", "a board with K3s is in such a network, or has a wider one"),
    "node-renamed": ("error", "the hostname is not that with which K3s was installed"),
    "packages-held": ("error", "apt holds a package that the run installs or updates"),
    "plugin-image": ("error", "gpu_device_plugin_image does not name one image of one registry"),
    "registries": ("error", "k3s_registries is not what K3s reads"),
    "registries-docker": ("error", "K3s' registries are given, and Docker runs the pods"),
    "registries-foreign": ("error", "K3s' registries are given, and the board has a file of its own"),
    "runtime-update": ("error", "NVIDIA's runtime is to be updated, and the bundle does not have it"),
    "server-down": ("error", "a board without K3s would join a server that does not answer"),
    "server-new": ("error", "the server has no K3s, and other boards are in a cluster already"),
    "server-unanswered": ("error", "the server has no K3s, and another server does not answer"),
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


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "equals": lambda value, wanted: bool(value == wanted),
    "is_not": lambda value, wanted: bool(value != wanted),
    "without": lambda value, unwanted: not set(unwanted) & set(value or ()),
    "known": lambda value, wanted: (value is not None) == wanted,
    "one_of": lambda value, wanted: value in wanted,
    "at_least": lambda value, wanted: value is not None and value >= wanted,
    "includes": lambda value, wanted: value is not None and set(wanted) <= set(value),
}


def holds(condition: dict[str, Any], facts: Facts) -> bool:
    """Is one condition met?

    A condition is a `fact` and an operator: equals, is_not, same_as (another fact), known, one_of, at_least
    (number), includes (list), without (list of keys), from/below (versions). Only `equals: null`, `is_not`,
    `without` and `known: false` are met by an unknown value (None).
    """
    value = lookup(facts, condition["fact"])
    if "same_as" in condition:
        return value is not None and bool(value == lookup(facts, condition["same_as"]))
    for operator, judge in OPERATORS.items():
        if operator in condition:
            return judge(value, condition[operator])
    if value is None:
        return False
    key = version_key(str(value))
    return version_key(str(condition.get("from", "0"))) <= key and (
        "below" not in condition or key < version_key(str(condition["below"]))
    )


def guide(finding_id: str) -> str:
    """Where the handbook explains a finding; a heading's anchor has no dots."""
    return f"{GUIDE}#{finding_id.replace(SEPARATOR, '')}"


def shown(condition: dict[str, Any], facts: Facts) -> Any:
    """The value that a finding shows: of `without`, what stands at the unwanted keys."""
    value = lookup(facts, condition["fact"])
    if "without" in condition:
        return "; ".join(value[key] for key in condition["without"] if key in value)
    return value


def advice(fix: str | list[dict[str, Any]], facts: Facts) -> str:
    """The fix for one board: of a list, each `text` whose conditions (`when`) are all met there."""
    if isinstance(fix, str):
        return fix
    return " ".join(
        part["text"] for part in fix if all(holds(condition, facts) for condition in part.get("when", []))
    )


def findings_of_rules(facts: Facts, rules: list[dict[str, Any]]) -> list[Finding]:
    """A finding for each rule that applies (`when`, all of them) and whose `require` is not met."""
    return [
        {
            "id": rule["id"],
            "level": rule.get("level", "error"),
            "found": rule["found"].format(value=shown(rule["require"], facts)),
            "expected": rule["expected"],
            "fix": advice(rule["fix"], facts),
            "url": guide(rule["id"]),
        }
        for rule in rules
        if all(holds(condition, facts) for condition in rule.get("when", []))
        and not holds(rule["require"], facts)
    ]


def rules_of_kernel(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A rule for each entry of the kernel's table; a feature of which nothing is known breaks none."""
    return [
        {
            "id": f"kernel-{entry['feature'].replace('_', '-')}",
            "level": entry.get("level", "error"),
            "when": entry.get("when", []),
            "require": {"fact": "kernel_lacks", "without": entry.get("features", [entry["feature"]])},
            "found": f"{{value}}: {entry['without']}",
            "expected": "a kernel with these features, built in or as modules of the kernel that runs",
            "fix": entry["fix"],
        }
        for entry in entries
    ]


def complete(finding: Finding) -> Finding:
    """The finding of code, with its level and its entry in docs/troubleshooting.md."""
    return {"level": CODED[finding["id"]][0], "url": guide(finding["id"])} | finding


def accept(findings: list[Finding], accepted: list[str], rules: list[dict[str, Any]]) -> list[Finding]:
    """All findings, complete; warnings whose id is accepted have that level. Unknown ids are errors."""
    known = {rule["id"] for rule in rules} | CODED.keys()
    strangers = [
        {
            "id": "accepted-unknown",
            "found": f"preflight_accepted has {name!r}",
            "expected": "ids of warnings (docs/troubleshooting.md has them)",
            "fix": "Take it out of preflight_accepted, or correct it.",
        }
        for name in accepted
        if name not in known
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


def former(names: list[str], known: dict[str, str]) -> str:
    """Variables that have another name now, each with the name to set instead."""
    return "; ".join(
        f"set {known[name]} instead of {name}" if known[name] else f"remove {name}, which has no effect"
        for name in names
    )


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {
            "preflight_accept": accept,
            "preflight_former": former,
            "preflight_kernel_rules": rules_of_kernel,
            "preflight_report": report,
            "preflight_rules": findings_of_rules,
        }
