# SPDX-License-Identifier: Apache-2.0
"""Which boards need a reboot: from boards of the status to a table."""

from __future__ import annotations

from typing import Any

from ansible.utils.unsafe_proxy import wrap_var

ADVICE = "Run playbooks/reboot.yml -e board_reboot_only_if_required=true, which reboots them in turn."


def table(found: dict[str, Any]) -> str:
    """A line for each board that needs a reboot, with the reason, and what to do."""
    needed = [board for board in found["boards"] if board["reboot"] and board["reboot"]["required"]]
    lines = [f"{board['name']} needs a reboot{_reason(board['reboot'])}" for board in needed]
    return "\n".join([*lines, ADVICE] if lines else ["No board that answered needs a reboot."])


def _reason(reboot: dict[str, Any]) -> str:
    kernel = [f"kernel {reboot['kernel']}"] if reboot["kernel"] else []
    reasons = ", ".join([*reboot["packages"], *kernel])
    return f" for {reasons}" if reasons else ""


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filter, prefixed by the role's name. A board's own words stay unsafe."""
        return {"gpu_status_reboots_table": lambda found: wrap_var(table(found))}
