# SPDX-License-Identifier: Apache-2.0
"""Which steps from one K3s to another Kubernetes' version skew policy allows. Pure."""

from __future__ import annotations

import re
from typing import Any

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


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {"k3s_upgrade_refusal": refusal}
