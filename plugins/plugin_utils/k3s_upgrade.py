# SPDX-License-Identifier: Apache-2.0
"""Which steps from one K3s to another Kubernetes' version skew policy allows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables

VERSION = re.compile(r"^v(\d+)\.(\d+)\.(\d+)")


def parsed(version: str) -> tuple[int, int, int]:
    """Major, minor and patch of `v1.33.5+k3s1`; ValueError for a text that is no version."""
    match = VERSION.match(version)
    if match is None:
        raise ValueError(f"not a version of K3s: {version!r}")
    return int(match[1]), int(match[2]), int(match[3])


def refusal(wanted: str, installed: str | None, role: str, server: str | None = None) -> str:
    """Why a node must not go from `installed` to `wanted`, '' when it may.

    `role` is 'server' or 'agent'. An agent may skip minor versions that its server has gone through: it was
    off then. `server` is the version of that server, None when it is upgraded before this node, and '' when
    it does not say. https://kubernetes.io/releases/version-skew-policy/
    """
    if installed is None:
        return "it has no K3s to upgrade; run site.yml for it"
    old, new = parsed(installed), parsed(wanted)
    if new < old:
        return f"{installed} is newer than the bundle's {wanted}, and the cluster's data do not go back"
    if new[0] != old[0] or (role == "server" and new[1] > old[1] + 1):
        return (
            f"from {installed} to {wanted} minor versions would be skipped; "
            f"go through v{old[0]}.{old[1] + 1} first, with a bundle of it"
        )
    if server is not None and (not server or parsed(server)[:2] < new[:2]):
        has = f"has {server}" if server else "does not say which K3s it has"
        return f"its server {has}, and an agent may not be newer; upgrade the server first"
    return ""


def backs_up(
    host: str, servers: Iterable[str], answering: Iterable[str], hostvars: board_variables.Hostvars
) -> bool:
    """Is this the server that makes the backup: the first one that answers, if one begins an upgrade?"""
    there = set(answering)
    members = [name for name in servers if name in there]
    begins = board_variables.values_of(members, hostvars, "k3s_upgrade_begins")
    return members[:1] == [host] and any(begins.values())


def old_binaries(files: Iterable[Mapping[str, Any]], link: str, versions: Iterable[str]) -> list[str]:
    """Paths of the binaries that the module find has found, without those of these versions."""
    kept = {f"{link}-{version}" for version in versions}
    return [str(file["path"]) for file in files if file["path"] not in kept]


FILTERS = {
    "k3s_upgrade_backs_up": backs_up,
    "k3s_upgrade_old_binaries": old_binaries,
    "k3s_upgrade_refusal": refusal,
}
