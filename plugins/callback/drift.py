# SPDX-License-Identifier: Apache-2.0
"""Ansible callback of drift.yml: what the plays beside it would change on which board, in a table at the end.

Ansible loads what lies beside a play, in the checkout and in the collection: this with no other playbook.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible.utils.vars import load_options_vars

DOCUMENTATION = """
name: drift
type: aggregate
short_description: Tells what tasks in check mode would change
description:
  - Collects what tasks in check mode would change, and ends the run with status 1 if that is anything.
  - A run in which a host fails, or is not reached, keeps the status that Ansible gives it (2 or 4).
  - C(-e jetson_k3s_drift_file=FILE) has it written as JSON, too.
"""

# The board of what is done once for all of them, such as the DaemonSet.
CLUSTER = "(cluster)"
DIFFERS, FAILED = 1, 2  # exit statuses; the second one is Ansible's

Result = dict[str, Any]


def diffs(result: Result) -> list[dict[str, Any]]:
    """The diffs of a task's result, one or several, of each item of a loop that would change."""
    items = [one for one in result.get("results", [result]) if isinstance(one, dict) and one.get("changed")]
    found = [one.get("diff") or [] for one in items]
    return [diff for some in found for diff in (some if isinstance(some, list) else [some])]


def place(diff: dict[str, Any]) -> str:
    """The file that a diff is about; empty if it does not say."""
    before = diff.get("before")
    return str(diff.get("before_header") or (before.get("path", "") if isinstance(before, dict) else ""))


def change_line(change: dict[str, Any]) -> str:
    """The task of a change and the files that it would write, in one line."""
    places = ", ".join(filter(None, map(place, change["diff"])))
    return f"{change['task']}: {places}" if places else change["task"]


def table(changes: list[dict[str, Any]], missed: dict[str, str], compared: int) -> str:
    """Changes and boards that were not compared, a line each, and what to do.

    `compared` is the number of boards that were.
    """
    rows = [(change["board"], change_line(change)) for change in changes]
    rows += [(board, f"not compared: {reason}") for board, reason in missed.items()]
    width = max((len(board) for board, _ in rows), default=0)
    lines = [f"{board:<{width}}  {text}" for board, text in rows]
    if changes:
        lines.append(
            "site.yml would change this; the differences themselves are above. Run it (restarts of Docker or "
            "K3s go from board to board), or write into the inventory what is to stay."
        )
    if missed:
        lines.append("Boards that were not compared may differ, too.")
    if not rows:
        lines.append("Nothing differs.")
    lines.append(f"Boards compared: {compared} of {compared + len(missed)}.")
    return "\n".join(lines)


class CallbackModule(CallbackBase):  # type: ignore[misc] # ansible-core has no types
    """Collects, and tells it at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "drift"

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.changes: list[dict[str, Any]] = []
        self.compared: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.file: str | None = None

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Let the roles know the play's check mode: Ansible's variable goes by the command line alone."""
        load_options_vars(None)["ansible_check_mode"] = bool(play.check_mode)
        self.file = play.get_variable_manager().extra_vars.get("jetson_k3s_drift_file")

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep what would change."""
        host, task = result._host.get_name(), result._task  # the public names came with ansible-core 2.19
        if not task.check_mode:
            return
        self.compared.add(host)
        if result.is_changed():
            board, name = CLUSTER if task.run_once else host, task.get_name(include_role_fqcn=False)
            self.changes.append({"board": board, "task": name, "diff": diffs(result._result)})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep why a board could not be compared: the last failure explains those before it."""
        self.reasons[result._host.get_name()] = str(result._result.get("msg", "")).strip().partition("\n")[0]

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """The same for a board that does not answer."""
        self.v2_runner_on_failed(result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Tell it. The status is the exit of this process, as Ansible's own says nothing of changes."""
        missed = {host: self.reasons.get(host, "") for host in sorted({*stats.dark, *stats.failures})}
        compared = sorted(self.compared - missed.keys())
        self._display.banner("WHAT DIFFERS")
        self._display.display(table(self.changes, missed, len(compared)))
        if self.file:
            found = {"changes": self.changes, "compared": compared, "not_compared": missed}
            try:
                path = Path(os.path.expandvars(self.file)).expanduser()  # as role controller_paths has it
                path.write_text(json.dumps(found, indent=2) + "\n")
            except OSError as error:
                self._display.error(f"jetson_k3s_drift_file: {error}")
                raise SystemExit(FAILED) from error
        if self.changes and not missed:
            raise SystemExit(DIFFERS)
