# SPDX-License-Identifier: Apache-2.0
"""Packages that the run installs, and apt's holds on them. A pure function behind the preflight role."""

from __future__ import annotations

from typing import Any

Finding = dict[str, str]


def findings_of_holds(plan: dict[str, Any], packages: dict[str, Any], runtime: str) -> list[Finding]:
    """Does the board's owner hold a package that this run installs or updates?

    `plan` is role nvidia_docker's, `packages` the facts about them, `runtime` that of the pods.
    """
    installs = sorted(plan["runtime_packages"] + (plan["engine_packages"] if runtime == "docker" else []))
    held = sorted(set(installs) & set(packages["held"]) - set(packages["ours"]))
    if not held:
        return []
    names = " ".join(held)
    return [
        {
            "id": "packages-held",
            "found": f"this run installs {', '.join(installs)}, and apt holds {', '.join(held)}",
            "expected": "no hold on a package that is to be installed or updated",
            "fix": f"`sudo apt-mark unhold {names}` on the board, and run the playbook again. It holds the "
            "packages that it installs. Or install them yourself first.",
        }
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {"preflight_holds": findings_of_holds}
