# SPDX-License-Identifier: Apache-2.0
"""Which boards are to reboot, and why. Pure."""

from __future__ import annotations

from typing import Any

from ansible.utils.unsafe_proxy import wrap_var


def reason(reboot: dict[str, Any]) -> str:
    """Why a board needs a reboot, '' if it needs none."""
    if not reboot["required"]:
        return ""
    kernel = [f"kernel {reboot['kernel']}"] if reboot["kernel"] else []
    return ", ".join([*reboot["packages"], *kernel]) or "/var/run/reboot-required"


def plan(facts: dict[str, dict[str, Any]], only_if_required: bool, updates: bool) -> str:
    """The boards that are to reboot and those that are left alone; `facts` are {inventory name: facts}."""
    reasons = {name: reason(one["reboot"]) for name, one in facts.items()}
    due = {name: why for name, why in reasons.items() if why or not only_if_required}
    lines = ["The update of packages may require more reboots."] if updates and only_if_required else []
    lines += [f"{name}: is to reboot" + (f" ({why})" if why else "") for name, why in due.items()]
    lines += [f"{name}: is left alone, no reboot required" for name in reasons if name not in due]
    return "\n".join(lines)


# Boards' own words stay unsafe.
FILTERS = {"board_reboot_plan": lambda *given: wrap_var(plan(*given))}
