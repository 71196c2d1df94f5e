# SPDX-License-Identifier: Apache-2.0
"""SIMULATED nvpmodel: the mode is the name of a file that a reboot makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Takes the arguments of the module."""

    _supports_check_mode = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Answer as the module does for a mode that needs a reboot."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result | {"id": 2, "reboot_required": not Path(self._task.args["mode"]).exists()}
