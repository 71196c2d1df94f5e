# SPDX-License-Identifier: Apache-2.0
"""Which boards are to reboot, how far each has come, and what a run says about them. Pure.

A board's progress is one of: planned, draining, cordoned (and down), down (its node was not drained), refused
(it has not rebooted and takes pods again), rebooted, unchanged.
"""

from __future__ import annotations

from typing import Any

from ansible.utils.unsafe_proxy import wrap_var

FAILED = ("draining", "cordoned", "down", "refused")
CORDONED = ("draining", "cordoned")


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


def failed(progress: dict[str, str]) -> list[str]:
    """Boards whose reboot failed or was not finished, unreachable boards among them."""
    return [name for name, stage in progress.items() if stage in FAILED]


def stopped(progress: dict[str, str], board: str, why: str = "") -> str:
    """Why the run stops, which nodes remain cordoned, how to go on. Without `why` an earlier board failed."""
    before = [name for name in failed(progress) if name != board]
    if not why:
        lines = [f"{board}: not touched, because this run failed on {', '.join(before)} (see above)."]
    elif progress[board] == "refused":
        lines = [f"{board}: has not rebooted, and takes pods as before. {why}"]
    else:
        lines = [f"{board}: is not back in service. {why}"]
    cordoned = [name for name, stage in progress.items() if stage in CORDONED and (why or name != board)]
    if cordoned:
        lines.append(f"Cordoned until a run has finished with them: {', '.join(cordoned)}.")
    left = [name for name, stage in progress.items() if stage not in ("rebooted", "unchanged")]
    lines.append(
        f"Repair the cause, then run the same command with --limit {','.join(left)}. It goes on from here."
    )
    return "\n".join(lines)


def summary(progress: dict[str, str]) -> str:
    """Boards that have rebooted, and boards that needed no reboot."""
    stages = ("rebooted", "unchanged")
    found = {stage: [name for name, one in progress.items() if one == stage] for stage in stages}
    return "\n".join(f"{stage}: {', '.join(names)}" for stage, names in found.items() if names) or "no board"


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name. Boards' own words stay unsafe."""
        return {
            "board_reboot_plan": lambda *given: wrap_var(plan(*given)),
            "board_reboot_failed": failed,
            "board_reboot_stopped": lambda *given: wrap_var(stopped(*given)),
            "board_reboot_summary": summary,
        }
