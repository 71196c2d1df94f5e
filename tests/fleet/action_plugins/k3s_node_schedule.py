# SPDX-License-Identifier: Apache-2.0
"""SIMULATED kubectl: logs what the module of this name would do, and keeps which nodes are cordoned."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc] # ansible-core has no types
    """Takes the arguments of the module."""

    _supports_check_mode = True

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Answer as the module does."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        name, state, quorum = given["name"], given["state"], given.get("quorum", False)
        fleet = Path(os.environ["FLEET"])
        cordon = fleet / name / "cordoned"
        if not self._task.check_mode:
            with (fleet / "log").open("a") as log:
                log.write(f"{state} {name}{' quorum' if quorum else ''}\n")
            (fleet / name / f"servers-{state}").write_text(json.dumps(dict(given["servers"])))
            if json.loads(os.environ["BROKEN"]).get(name) == state:
                return result | {"failed": True, "msg": f"node {name}: {state} is broken"}
            if state == "drained":
                cordon.touch()
            elif state == "schedulable":
                cordon.unlink(missing_ok=True)
        told = {"known": True, "nodes": [], "offers": {}, "capacity": {}, "cordoned": cordon.exists()}
        return result | told | {"changed": state != "known"}
