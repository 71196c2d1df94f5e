# SPDX-License-Identifier: Apache-2.0
"""The configurations of the device plugin in an inventory: which there are, their names, and their boards.

Each is a DaemonSet of its own. The boards' nodes have its name as the value of the API's label. The nodes of
the default have the value `true`, which those of a cluster with one configuration always had.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_manifests as manifests,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import host_kinds, preflight_inventory

AGENT_DEFAULTS = {
    "enabled": False,
    "mode": "report",
    "hostPID": False,
    "qosPolicy": "best-effort",
    "unusedAfter": "",
}
# The label by which NVIDIA's chart chooses a node's configuration.
NVIDIA_LABEL = "nvidia.com/device-plugin.config"
DEFAULT = ""
# The value of a label on the nodes of the default.
DEFAULT_LABEL = "true"
# They read as if no plugin ran there.
NOWHERE = ("false", "no")
# By API, the DaemonSet of its default configuration.
DAEMONSETS = {"device-plugin": "tegra-device-plugin", "dra": "tegra-dra-driver"}
# By field of Board, the settings that are a configuration's contents.
CONTENTS = {
    "api": "gpu_device_plugin_api",
    "config": "gpu_device_plugin_config",
    "strict": "nvidia_docker_strict",
    "agent": "gpu_device_plugin_agent",
}


class Agent(TypedDict):
    """The node agent's settings."""

    enabled: bool
    mode: str
    qos_policy: str
    host_pid: bool
    unused_after: str
    """A duration; '': containers that have the GPU without use are not named."""


class Board(TypedDict):
    """What the inventory says of a board: a name if it gives one, and the contents."""

    host: str
    name: str
    label: str
    """NVIDIA's label among the node's labels of the inventory."""
    api: str
    config: dict[str, Any]
    strict: bool
    agent: Agent
    unread: list[str]
    """Settings whose value is none that they can have."""


class Configuration(TypedDict):
    """One DaemonSet, and the boards that it serves."""

    name: str
    """'' for the default of its API."""
    api: str
    config: dict[str, Any]
    strict: bool
    agent: Agent
    boards: list[str]


class Deployed(TypedDict):
    """What the cluster has."""

    settings: dict[str, str]
    """Its DaemonSets, with the hash of their settings."""
    defaults: dict[str, list[str]]
    """By API, the boards whose nodes have the default configuration."""


def agent_of(given: Mapping[str, Any]) -> Agent:
    """The node agent's settings, with their defaults."""
    chosen = {**AGENT_DEFAULTS, **given}
    return {
        "enabled": boolean(chosen["enabled"]),
        "mode": chosen["mode"],
        "qos_policy": chosen["qosPolicy"],
        "host_pid": boolean(chosen["hostPID"]),
        "unused_after": str(chosen["unusedAfter"] or ""),
    }


def boards_of(
    table: Iterable[Mapping[str, Any]], groups: Mapping[str, list[str]], hostvars: Mapping[str, Any]
) -> list[Board]:
    """All boards of the inventory, also those that are not in the run.

    `table` has, by field, the variable's name and the default of its role.
    """
    # In JSON's types: Ansible's own, with tags, are others.
    table, found = json.loads(json.dumps(list(table))), []
    for host in host_kinds.boards_of(groups.get("k3s_cluster", []), hostvars):
        variables = hostvars[host]
        said = {entry["field"]: preflight_inventory.read(entry, variables) for entry in table}
        unread = [entry for entry in table if type(said[entry["field"]]) is not type(entry["default"])]
        said |= {entry["field"]: entry["default"] for entry in unread}
        board: Board = {
            "host": host,
            "name": said["name"],
            "label": str(said["labels"].get(NVIDIA_LABEL) or ""),
            "api": said["api"],
            "config": said["config"],
            "strict": said["strict"],
            "agent": agent_of(said["agent"]),
            "unread": [entry["name"] for entry in unread],
        }
        found.append(board)
    return found


def contents(board: Board) -> str:
    """All that the DaemonSet is made from, in one form."""
    parts: dict[str, Any] = {field: board[field] for field in CONTENTS}  # type: ignore[literal-required]
    if not board["agent"]["enabled"]:
        parts["agent"] = None
    elif not board["agent"]["unused_after"]:
        # A release without this setting has given the same settings the same name.
        parts["agent"] = {key: value for key, value in board["agent"].items() if key != "unused_after"}
    return json.dumps(parts, sort_keys=True)


def sharing_of(config: Mapping[str, Any]) -> str:
    """How the GPU is shared, in a word of a name."""
    sharing = config.get("sharing") or {}
    if "dra" in sharing:
        return "claims"
    return {"units": "units", "timeSlicing": "time-slicing"}.get(next(iter(sharing), ""), "exclusive")


def derived_name(board: Board) -> str:
    """The name of contents that the inventory does not name."""
    digest = hashlib.sha256(contents(board).encode()).hexdigest()
    return f"{sharing_of(board['config'])}-{digest[:8]}"


def settings_hash(config: Mapping[str, Any]) -> str:
    """What the DaemonSet's annotation has of these settings; '' without settings."""
    return hashlib.sha256(json.dumps(config, indent=2).encode()).hexdigest() if config else ""


def deployed(servers: Iterable[Mapping[str, Any]]) -> Deployed:
    """What the cluster has, by the results of module k3s_nodes."""
    servers = list(servers)
    settings: dict[str, str] = next((one["settings"] for one in servers if one.get("settings")), {})
    nodes: list[Any] = next((one["nodes"] for one in servers if one.get("nodes")), [])
    defaults = {
        api: [one["board"] for one in nodes if one["labels"].get(label) == DEFAULT_LABEL]
        for api, label in manifests.API_LABELS.items()
    }
    return {"settings": dict(settings), "defaults": defaults}


def default_contents(unnamed: Iterable[Board], settings: str | None, boards: Iterable[str]) -> str:
    """Which of the unnamed contents of one API keep the plain names: '' without any.

    Those that the cluster has under them, by `settings`, the hash there. Else those of most of `boards`, the
    default's now, then of most of all. So other settings for a board do not rename those of others.
    """
    by_contents: dict[str, list[Board]] = {}
    for board in unnamed:
        by_contents.setdefault(contents(board), []).append(board)
    there = {
        one: those
        for one, those in by_contents.items()
        if settings is not None and settings_hash(those[0]["config"]) == settings
    }
    now = set(boards)

    def weight(one: str) -> tuple[int, int]:
        hosts = [board["host"] for board in by_contents[one]]
        return len(now.intersection(hosts)), len(hosts)

    return max(there or by_contents, key=weight, default="")


def configurations(boards: Iterable[Board], cluster: Deployed) -> list[Configuration]:
    """The configurations of the boards, the defaults first."""
    boards = list(boards)
    unnamed = [board for board in boards if not (board["name"] or board["label"])]
    defaults = {
        default_contents(
            (board for board in unnamed if board["api"] == api),
            cluster["settings"].get(daemonset),
            cluster["defaults"].get(api, []),
        )
        for api, daemonset in DAEMONSETS.items()
    }
    found: dict[tuple[str, str], Configuration] = {}
    for board in boards:
        is_default = board in unnamed and contents(board) in defaults
        name = DEFAULT if is_default else board["name"] or board["label"] or derived_name(board)
        one = found.setdefault(
            (board["api"], name),
            {
                "name": name,
                "api": board["api"],
                "config": board["config"],
                "strict": board["strict"],
                "agent": board["agent"],
                "boards": [],
            },
        )
        one["boards"].append(board["host"])
    return sorted(found.values(), key=lambda one: (one["name"], one["api"]))


def label_value(name: str) -> str:
    """The value of the API's label on the nodes of a configuration."""
    return name or DEFAULT_LABEL


def name_of_label(value: str | None) -> str | None:
    """The name of a node's configuration by its label's value; '' is the default, None that it has none."""
    if not value or value in NOWHERE:
        return None
    return DEFAULT if value == DEFAULT_LABEL else value


FILTERS = {
    "gpu_device_plugin_boards": boards_of,
    "gpu_device_plugin_configurations": lambda boards, servers: configurations(boards, deployed(servers)),
}
