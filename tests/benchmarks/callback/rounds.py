# SPDX-License-Identifier: Apache-2.0
"""Ansible callback for the benchmark: counts what each host was asked, and when each role was at work.

Written as JSON to the file that $ROUNDS_FILE names.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped] # ansible-core has no types

DOCUMENTATION = """
name: rounds
type: aggregate
short_description: Counts rounds for the benchmark
description: Counts tasks, and those that went over the connection to a board.
"""

# Done by the controller alone, without a word to the board.
ON_CONTROLLER = frozenset({"assert", "debug", "fail", "meta", "set_fact", "validate_argument_spec"})
# The role whose first task ends provisioning.
VERIFICATION = "gpu_verify"


class CallbackModule(CallbackBase):  # type: ignore[misc] # as above
    """Counts per host."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rounds"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        """Begin the clock."""
        super().__init__()
        self.counts: dict[str, Counter[str]] = {}
        self.begin = time.monotonic()
        self.verification_begin: float | None = None

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Note when verification begins."""
        role = task._role.get_name() if task._role else None  # no public name in ansible-core 2.19
        if self.verification_begin is None and role == VERIFICATION:
            self.verification_begin = time.monotonic()

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task that ran; a loop is as many rounds as it has items."""
        host, task = result._host.get_name(), result._task  # the public names came with ansible-core 2.19
        counts = self.counts.setdefault(host, Counter())
        part = "provisioning" if self.verification_begin is None else "verification"
        local = task.action.rpartition(".")[2] in ON_CONTROLLER or task.delegate_to == "localhost"
        items = result._result.get("results")
        repeated = sum(not item.get("skipped") for item in items) if task.loop and items else 1
        counts[f"{part}_tasks"] += 1
        counts[f"{part}_rounds"] += 0 if local else repeated

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the counts."""
        end = time.monotonic()
        report = {
            "hosts": self.counts,
            "provisioning_seconds": (self.verification_begin or end) - self.begin,
            "verification_seconds": end - (self.verification_begin or end),
        }
        Path(os.environ["ROUNDS_FILE"]).write_text(json.dumps(report))
