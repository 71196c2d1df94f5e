# SPDX-License-Identifier: Apache-2.0
"""Ansible callback: names the boards that are done, failed, and not touched, at the end of a run.

A last play could not: Ansible ends a playbook when all boards of a batch are lost. It loads this plugin for
the playbooks beside it, in the checkout and in the collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: rollout
type: aggregate
short_description: Names the boards that are done, failed and not touched
description:
  - Shows the facts that role C(rollout) sets on each board, when the run has ended in any way.
  - A run without role C(rollout) gets nothing.
"""

PROGRESS, LIMIT, CORDONED = "rollout_progress", "rollout_limit", "k3s_node_cordoned"
UNTOUCHED = "not touched"

Progress = Mapping[str, str]


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Key that sorts jetson-2 before jetson-10."""
    return [
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)
    ]


def why(name: str, progress: Progress, lost: Mapping[str, str]) -> str:
    """Why a board has failed. A board that has only started does not answer, or the run was interrupted."""
    if progress["stage"] == "failed":
        return progress["reason"].removeprefix(f"{name}: ")
    return f"does not answer any more ({lost[name]})" if name in lost else "interrupted"


def report(progress: Mapping[str, Progress], lost: Mapping[str, str], cordoned: set[str], limit: bool) -> str:
    """The result of a run, '' if no board was touched.

    `lost` has the task in which a board became unreachable. `limit` is true if the playbook takes --limit.
    """
    names = sorted(progress, key=natural)
    stages = {name: progress[name]["stage"] for name in names}
    if set(stages.values()) <= {"planned"}:
        return ""
    gone = [name for name in names if stages[name] == "planned" and name in lost]
    failed = [name for name in names if stages[name] in ("failed", "started")] + gone
    words: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda one: stages[one] != "done"):
        if name not in failed and (failed or stages[name] != "planned"):
            words.setdefault(progress[name].get("word", UNTOUCHED), []).append(name)
    lines = [f"{word}: {', '.join(boards)}" for word, boards in words.items()]
    reasons = {name: why(name, progress[name], lost).replace("\n", "\n  ") for name in failed}
    lines += [f"failed: {name}: {reason}" for name, reason in reasons.items()]
    if failed:
        left = ",".join(name for name in names if stages[name] != "done")
        stay = ", ".join(name for name in names if name in cordoned)
        lines += [f"Cordoned until a run has finished with them: {stay}."] if stay else []
        how = f"with --limit {left}" if limit else "again"
        lines.append(f"Repair the cause, then run the same command {how}. It goes on from here.")
    return "\n".join(lines)


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible-core has no types
    """Collects the facts, and shows the result."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "rollout"

    def __init__(self) -> None:
        """No board has progress yet."""
        super().__init__()
        self.progress: dict[str, Progress] = {}
        self.lost: dict[str, str] = {}
        self.cordoned: set[str] = set()
        self.limit = False

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep what a board's facts say."""
        host = result._host.get_name()  # the public names came with ansible-core 2.19
        facts = result._result.get("ansible_facts", {})
        self.progress |= {host: facts[PROGRESS]} if PROGRESS in facts else {}
        self.limit |= bool(facts.get(LIMIT))
        if CORDONED in facts:
            (self.cordoned.add if facts[CORDONED] else self.cordoned.discard)(host)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep the task in which a board was lost."""
        self.lost[result._host.get_name()] = result._task.get_name(include_role_fqcn=False)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Show the result, after Ansible's own recap."""
        text = report(self.progress, self.lost, self.cordoned, self.limit)
        if text and (set(stats.failures) | set(stats.dark) or not context.CLIARGS.get("check")):
            self._display.banner("RESULT OF THE ROLLOUT")
            self._display.display(text)
