# SPDX-License-Identifier: Apache-2.0
"""What a run shows on the screen, as text: its steps, failures and end, from Ansible's results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_python

INDENT = 6
"""Columns of the clock before a step. What belongs to the step begins below its name."""
MOST_NAMES = 5
"""Boards that a line names; more are a number."""
LAST_LINES = 8
"""Of the error output of a command that says nothing else."""
# Tasks that prepare others or only show something. A play that has no others is not shown.
PREPARING = {
    *("add_host", "assert", "debug", "fail", "group_by", "include_role", "include_tasks", "include_vars"),
    *("gpu_report", "meta", "run_lock", "set_fact", "set_stats", "validate_argument_spec"),
}
LOGGED = "Log "
"""Begins the name of a task whose message is for the file alone."""
HIDDEN = "its output is hidden, because it may have a secret (no_log)"
# Messages of Ansible that say less than what the program itself has written. The longer one came with 2.21.
EMPTY = ("", "non-zero return code", "The command exited with a non-zero return code", "MODULE FAILURE")
LOOP = ("One or more items failed", "All items completed", "one or more items failed")


@dataclass
class Step:
    """A play, as far as it has run. Times are seconds of one clock."""

    name: str
    began: float
    changes: dict[str, list[str]] = field(default_factory=dict)
    """Per board that took part, the names of the tasks that have changed it."""
    failed: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    """For the user, once each."""
    visible: bool = False
    """Whether a task has done more than prepare others."""

    def line(self, now: float, width: int) -> str:
        """The step in one line: how long it took, and its result on each board, or their number."""
        start = f"{clock(now - self.began)}  {self.name}: "
        line = start + ", ".join(self.results())
        return line if len(line) <= width else start + self.totals()

    def results(self) -> list[str]:
        """The result of each board. Boards without a change are together."""
        words = [f"{name} {counted(len(tasks), 'change')}" for name, tasks in self.done() if tasks]
        same = [name for name, tasks in self.done() if not tasks]
        if same:
            words.append(f"{', '.join(same)} ok")
        return words + [f"{name} FAILED" for name in sorted(self.failed)]

    def totals(self) -> str:
        """The same as numbers."""
        changed = [tasks for _, tasks in self.done() if tasks]
        same = sum(not tasks for _, tasks in self.done())
        words = [f"{sum(map(len, changed))} changes on {counted(len(changed), 'board')}"] if changed else []
        words += [f"{counted(same, 'board')} ok"] if same else []
        words += [f"{len(self.failed)} FAILED"] if self.failed else []
        return ", ".join(words)

    def done(self) -> list[tuple[str, list[str]]]:
        """Boards that have not failed, with their changes."""
        return [(name, self.changes[name]) for name in sorted(self.changes) if name not in self.failed]


def clock(seconds: float) -> str:
    """Minutes and seconds, as wide as INDENT less the gap."""
    return f"{int(seconds) // 60:d}:{int(seconds) % 60:02d}".rjust(INDENT - 2)


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 board, 2 boards."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def action_name(action: str) -> str:
    """The name of a module without its collection."""
    return action.rpartition(".")[2]


def message(result: Mapping[str, Any]) -> str:
    """What a failed task says, or each failed item of its loop."""
    if "censored" in result:
        return HIDDEN
    items = result.get("results")
    if isinstance(items, Sequence) and not isinstance(items, str):
        failed = [one for one in items if isinstance(one, Mapping) and item_failed(one)]
        if failed:
            return "\n".join(dict.fromkeys(map(message, failed)))
    text = plain(result.get("msg", ""))
    if text.partition("\n")[0].rstrip(".") in EMPTY:
        outputs = (result.get("stderr"), result.get("module_stderr"), result.get("stdout"))
        output = next((str(one).strip() for one in outputs if one and str(one).strip()), "")
        text = "\n".join(output.splitlines()[-LAST_LINES:]) or text or "no reason given"
    return "\n".join(filter(None, (text, board_python.too_old(text))))


def item_failed(item: Mapping[str, Any]) -> bool:
    """Whether an item of a loop has failed. On ansible-core 2.21 callbacks get no `failed` with it."""
    return bool(item.get("failed", item.get("failed_when_result", "exception" in item)))


def plain(value: Any) -> str:
    """A message as text: some are lists."""
    if isinstance(value, (list, tuple)):
        return "\n".join(plain(one) for one in value)
    return str(value).strip()


def block(text: str, width: int | None, indent: int = INDENT) -> str:
    """A text below a step; `width` breaks long lines, None leaves them to a program that reads them."""
    lines: list[str] = []
    for line in text.splitlines():
        if width is None or not line.strip():
            lines.append(" " * indent + line if line.strip() else "")
            continue
        inner = " " * (indent + len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line.strip(), width, initial_indent=inner, subsequent_indent=inner,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def cut(line: str, width: int) -> str:
    """A line that fits the terminal."""
    return line if len(line) <= width else f"{line[: width - 4].rstrip()} ..."


def recap(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each board, in Ansible's words."""
    width = max(map(len, counts), default=0)
    words = {"ok": "ok", "changed": "changed", "unreachable": "unreachable", "failures": "failed"}
    return [
        f"{name:<{width}}  : " + "  ".join(f"{word}={counts[name][key]}" for key, word in words.items())
        for name in sorted(counts)
    ]


def verdict(counts: Mapping[str, Mapping[str, int]], seconds: float, *, check: bool) -> str:
    """The last line: what the run means."""
    bad = sorted(name for name, one in counts.items() if one["failures"] or one["unreachable"])
    changes = sum(one["changed"] for one in counts.values())
    of_them = counted(len(counts), "board")
    if bad:
        what = f"FAILED on {names(bad)} of {of_them}"
    elif check:
        what = f"{of_them} checked, {counted(changes, 'change')} to make"
    else:
        what = f"{of_them} done, {counted(changes, 'change')}"
    nothing = " Check mode: nothing was changed." if check else ""
    return f"{what}, in {clock(seconds).strip()} min.{nothing}"


def names(boards: Iterable[str]) -> str:
    """Boards by name, many by number."""
    listed = list(boards)
    return ", ".join(listed) if len(listed) <= MOST_NAMES else str(len(listed))
