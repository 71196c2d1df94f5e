# SPDX-License-Identifier: Apache-2.0
"""Findings about the configurations of the device plugin in an inventory.

All of its boards count, also those that are not in the run: the DaemonSets are made of their settings. Values
may be secret, so a finding says which settings differ, and not how.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_configurations as configurations,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import preflight_inventory

Board = configurations.Board
Finding = preflight_inventory.Finding

# The name of a DaemonSet ends with it, and a label has it as its value: DNS-1123, up to 63 characters.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
RESERVED = (configurations.DEFAULT_LABEL, *configurations.NOWHERE)
PERCENTAGE = re.compile(r"([1-9][0-9]?|100)%")
OWN_NAME = "gpu_device_plugin_config_name"
LABEL = f"{configurations.NVIDIA_LABEL} in k3s_node_labels"


def findings(boards: Iterable[Board], groups: Mapping[str, list[str]]) -> list[Finding]:
    """What cannot be deployed, of each board and of all together."""
    boards = list(boards)
    found = [one for board in boards for one in (*of_settings(board), *of_name(board))]
    return [*found, *of_contents(boards, groups)]


def of_settings(board: Board) -> Iterator[Finding]:
    """Settings that say nothing that a DaemonSet could be made of."""
    if board["unread"]:
        yield {
            "id": "configuration-unreadable",
            "found": f"{board['host']}: {', '.join(board['unread'])}: no value that the setting can have, or "
            "a template that cannot be evaluated",
            "expected": "settings of the device plugin that are known for each board of the inventory",
            "fix": "Correct the value in the inventory. The name of an undefined variable may be in it.",
        }
    if wrong := wrong_percentage(board["config"]):
        yield {
            "id": "configuration-memory-total",
            "found": f"{board['host']}: memoryTotal in gpu_device_plugin_config is {wrong!r}",
            "expected": "1% to 100% of the board's memory, without a fraction, or a quantity such as 4Gi",
            "fix": "Correct memoryTotal. For example, 75% is three quarters of each board's memory.",
        }


def wrong_percentage(config: Mapping[str, Any]) -> str:
    """A memoryTotal that is no percentage of a board's memory, although it ends like one; '' without any.

    K3s would reserve it before the plugin can refuse it.
    """
    sharing = config.get("sharing")
    parts = sharing.values() if isinstance(sharing, dict) else ()
    totals = [str(part.get("memoryTotal", "")) for part in parts if isinstance(part, dict)]
    return next((one for one in totals if one.endswith("%") and not PERCENTAGE.fullmatch(one)), "")


def of_name(board: Board) -> Iterator[Finding]:
    """A name that cannot be that of a configuration, or two names."""
    name, label = board["name"], board["label"]
    if name and label not in ("", name):
        yield {
            "id": "configuration-two-names",
            "found": f"{board['host']}: {OWN_NAME} is {name}, and {LABEL} is {label}",
            "expected": "one name of the board's configuration",
            "fix": "Leave one of the two out of the inventory.",
        }
    given = name or label
    if given and (not NAME.fullmatch(given) or given in RESERVED):
        yield {
            "id": "configuration-name",
            "found": f"{board['host']}: {OWN_NAME if name else LABEL} is {given!r}",
            "expected": "up to 63 small letters, digits and dashes, no dash at its ends, and not "
            f"{', '.join(RESERVED)}: a label's value and a part of a DaemonSet's name",
            "fix": "Choose another name, such as `units`.",
        }


def of_contents(boards: list[Board], groups: Mapping[str, list[str]]) -> Iterator[Finding]:
    """Names that boards give to different settings."""
    hosts = [board["host"] for board in boards]
    named: dict[str, dict[str, list[Board]]] = {}
    for board in boards:
        if given := board["name"] or board["label"]:
            named.setdefault(given, {}).setdefault(configurations.contents(board), []).append(board)
    for name, by_contents in sorted(named.items()):
        if len(by_contents) == 1:
            continue
        first, *others = (same[0] for same in by_contents.values())
        differ = [
            setting
            for field, setting in configurations.CONTENTS.items()
            if any(one[field] != first[field] for one in others)  # type: ignore[literal-required]
        ]
        places = [
            preflight_inventory.place([one["host"] for one in same], groups, hosts)
            for same in by_contents.values()
        ]
        yield {
            "id": "configuration-differs",
            "found": f"{len(places)} configurations have the name {name}: that of "
            f"{'; that of '.join(places)}. They differ in {', '.join(differ)}",
            "expected": "one configuration for each name",
            "fix": f"Give one another {OWN_NAME}, or both the same settings.",
        }


FILTERS = {
    "preflight_configurations": lambda table, groups, hostvars: preflight_inventory.completed(
        findings(configurations.boards_of(table, groups, hostvars), groups)
    ),
}
