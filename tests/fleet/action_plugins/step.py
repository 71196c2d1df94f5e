# SPDX-License-Identifier: Apache-2.0
"""SIMULATED: a step of a role, without a process on the board. It is logged, fails, or loses the board."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """`name` is the step; `writes` is the content of files of the board."""

    _supports_check_mode = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write the log, in check mode nothing."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        board, step = (task_vars or {})["inventory_hostname"], self._task.args["name"]
        fleet = Path(os.environ["FLEET"])
        if json.loads(os.environ["LOST"]).get(board) == step:
            raise AnsibleConnectionFailure("no route to host")
        if not self._task.check_mode:
            with (fleet / "log").open("a") as log:
                log.write(f"{step} {board} {self._task.args.get('with', '')}".strip() + "\n")
        if json.loads(os.environ["BROKEN"]).get(board) == step:
            return result | {"failed": True, "msg": f"{step} is broken"}
        if not self._task.check_mode:
            for name, content in self._task.args.get("writes", {}).items():
                (fleet / board / name).write_text(content)
        return result
