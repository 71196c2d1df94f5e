# SPDX-License-Identifier: Apache-2.0
"""When K3s starts on a board: now, by role rolling_restart, or not at all. Pure functions for role k3s."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from ansible.module_utils.parsing.convert_bool import boolean

MINOR = re.compile(r"v\d+[.]\d+")


class Settings(TypedDict):
    """What this run says, and what its tasks have found. A result is {} before its task has run."""

    role: str
    staged: bool
    """Whether role rolling_restart restarts a running K3s, because the restart may fail."""
    configured: dict[str, Any]
    """Of module file_set, or `restart_due` alone."""
    docker_waits: bool
    """Whether a restart of Docker is pending."""
    node: dict[str, Any]
    """Of module k3s_node."""
    version: str
    """The K3s that the board gets."""


class Restart(TypedDict):
    """What the tasks do."""

    due: bool
    """Whether K3s has to start again to use its files."""
    postpones: bool
    """Whether a restart is left to role rolling_restart."""
    starts: bool
    """Whether K3s starts or restarts in this role."""
    waits: bool
    """Whether a restart is pending afterwards."""
    gated: bool
    """Whether role rolling_restart has to do with the node. One that was left cordoned goes the same way."""
    upgrades: bool
    """Whether a pending restart brings another minor version. Kubernetes wants a node without pods then."""


def minor(version: str) -> str:
    """Major and minor version of K3s, as `v1.33`."""
    found = MINOR.match(version)
    return found.group() if found else ""


def restart(k3s: Mapping[str, Any], settings: Settings) -> Restart:
    """What happens to K3s on a board. `k3s` are the board's facts."""
    unit, configured = k3s[settings["role"]], settings["configured"]
    runs = bool(unit["active"] and unit["enabled"])
    postpones = boolean(settings["staged"]) and runs
    due = boolean(configured.get("restart_due", False))
    waits = postpones and bool(configured.get("postponed") or due or boolean(settings["docker_waits"]))
    version = settings["version"]
    return {
        "due": due,
        "postpones": postpones,
        "starts": (due or not runs) and not postpones,
        "waits": waits,
        "gated": waits or (postpones and bool(settings["node"].get("cordoned"))),
        "upgrades": waits and minor(k3s["version"] or version) != minor(version),
    }


FILTERS = {"k3s_restart": restart}
