# SPDX-License-Identifier: Apache-2.0
"""No lock, for tests of something else: the module of this name is a process on each board."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Takes the arguments of the module."""

    _supports_check_mode = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """No other run is there."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result | {"other": "", "boot_id": "boot"}
