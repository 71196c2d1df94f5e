# SPDX-License-Identifier: Apache-2.0
"""What the reports of a fleet say together: who passed, what needs attention, what has changed.

Runs on the controller. Pure functions: reports in, plain data out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "jetson-k3s/verify-report"
SCHEMA_VERSION = 1
# Report a time that doubled or halved, and by more than polling and a busy machine cause.
TIMES_SLOWER = 2.0
SECONDS_SLOWER = 1.0
STATUS = {0: "passed", 1: "failed", 2: "error"}
NOT_VERIFIED = "no report: the run ended before this board was verified, or it still goes on"
# ANSI colours, and what XML 1.0 (section 2.2) does not allow, lone surrogates too; HTML has no use for it.
UNPRINTABLE = re.compile("\x1b\\[[0-9;?]*[A-Za-z]|[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# Checks in which a pod uses the GPU alone: without them nothing was proven about it.
PROOF = ("device-query", "cuda-kernel")
# Kinds of changes, what broke first.
KINDS = ("broken", "fixed", "slower", "faster", "other")

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One difference to the reports before: of one board, or the same on many."""

    kind: str
    text: str
    boards: Sequence[str]


@dataclass(frozen=True)
class Board:
    """One board of a run; `report` is None where it was not verified, and `reason` says why."""

    name: str
    status: str  # passed, failed, error (could not be verified to the end) or unverified
    report: Report | None = None
    reason: str = ""
    previous: Report | None = None
    changes: Sequence[Change] = field(default_factory=tuple)

    @property
    def checks(self) -> Sequence[Report]:
        """The board's checks, in the order of the report."""
        return self.report["checks"] if self.report else ()

    @property
    def loose_ends(self) -> Sequence[str]:
        """Failures of the verification that belong to no check."""
        ids = {check["id"] for check in self.checks}
        return (
            [line for line in self.report["failures"] if line.partition(":")[0] not in ids]
            if self.report
            else []
        )

    def check(self, name: str) -> Report | None:
        """A check by its id."""
        return next((check for check in self.checks if check["id"] == name), None)

    @property
    def simulated(self) -> bool:
        """Whether it is a virtual board."""
        return bool(self.report and self.report["simulated"])

    @property
    def checked(self) -> str:
        """How many of the checks were made; '' without a report."""
        return checked(self.checks) if self.report else ""

    @property
    def unproven(self) -> str:
        """Why no pod has tried the GPU of a board that has passed; '' if one has."""
        return unproven(self.checks) if self.status == "passed" else ""

    def count(self, status: str) -> int:
        """How many of the board's checks have a status."""
        return sum(check["status"] == status for check in self.checks)


@dataclass(frozen=True)
class Problem:
    """The same thing wrong on one board or on many."""

    check: Report
    boards: Sequence[str]


@dataclass(frozen=True)
class Fleet:
    """All boards of a run, failed boards first, and the boards of the inventory outside the run."""

    started: str
    boards: Sequence[Board]
    left_out: Sequence[Board] = ()

    @property
    def exit_code(self) -> int:
        """0 all passed; 1 a check failed somewhere; 2 none failed, but not every board could be verified."""
        found = {board.status for board in self.boards}
        if "failed" in found:
            return 1
        return 0 if found <= {"passed"} and self.boards else 2

    @property
    def simulated(self) -> bool:
        """Whether any of the boards is a virtual one."""
        return any(board.simulated for board in self.boards)

    @property
    def checked(self) -> str:
        """How many of all boards' checks were made."""
        return checked([check for board in self.boards for check in board.checks])

    def changes(self) -> Sequence[Change]:
        """What is different from the reports before, what broke first; the same on many boards is one."""
        groups: dict[tuple[str, str], list[str]] = {}
        for board in self.boards:
            for change in board.changes:
                groups.setdefault((change.kind, change.text), []).extend(change.boards)
        found = [Change(kind, text, boards) for (kind, text), boards in groups.items()]
        return sorted(found, key=lambda change: (KINDS.index(change.kind), -len(change.boards)))

    def unverified(self) -> Mapping[str, Sequence[str]]:
        """Names of the boards without a report, or whose verification broke outside its checks, by reason."""
        groups: dict[str, list[str]] = {}
        for board in self.boards:
            for reason in board.loose_ends if board.report else [board.reason]:
                groups.setdefault(reason, []).append(board.name)
        return groups

    def count(self, *statuses: str) -> int:
        """How many boards have one of the statuses."""
        return sum(board.status in statuses for board in self.boards)

    def columns(self) -> Sequence[str]:
        """Ids of the checks that any board has."""
        return list(dict.fromkeys(check["id"] for board in self.boards for check in board.checks))

    def problems(self) -> Sequence[Problem]:
        """Failed checks, then those that broke, the most frequent first; one reason on many boards is one."""
        groups: dict[tuple[str, str, str], list[tuple[str, Report]]] = {}
        for board in self.boards:
            for check in board.checks:
                if check["status"] in ("failed", "error"):
                    reason = check.get("reason", "").replace(board.name, "<board>")
                    groups.setdefault((check["id"], check["status"], reason), []).append((board.name, check))
        found = [Problem(same[0][1], [name for name, _ in same]) for same in groups.values()]
        return sorted(found, key=lambda one: (one.check["status"] != "failed", -len(one.boards)))


def is_board(report: Report) -> bool:
    """Whether it is the report of a Jetson. Reports of older releases are of Jetsons only."""
    return bool(report["board"].get("kind", "board") == "board")


def computer(report: Report) -> str:
    """What the host is, in a few words."""
    board = report["board"]
    return f"{board['model']}, JetPack {board['jetpack']}" if is_board(report) else "plain host"


def checked(checks: Sequence[Report]) -> str:
    """How many of the checks have an answer: those that were skipped or broke have none."""
    made = sum(check["status"] in ("passed", "failed") for check in checks)
    return f"{made} of {len(checks)} checked"


def unproven(checks: Sequence[Report]) -> str:
    """Why no pod has tried the GPU, '' if one has."""
    tried = [check for check in checks if check["id"] in PROOF]
    skipped = bool(tried) and all(check["status"] == "skipped" for check in tried)
    return str(tried[0]["reason"]) if skipped else ""


def heading(check: Report) -> str:
    """What a check has shown: what failed, if it failed. Reports of older releases do not say that."""
    title = str(check["title"])
    if check["status"] == "error":
        return f"Could not be checked: {title}"
    return str(check.get("failure") or title) if check["status"] == "failed" else title


def natural(name: str) -> list[tuple[int, str]]:
    """Sorting key for names of boards: jetson-2 comes before jetson-10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part]


def clean(value: Any) -> Any:
    """The data with texts that are valid in every file format: logs may have control characters."""
    if isinstance(value, str):
        return UNPRINTABLE.sub("", value)
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    return value


def unreadable(report: Any) -> str:
    """Why something is no report that this page can show; empty when it is one."""
    if not isinstance(report, Mapping) or report.get("schema") != SCHEMA:
        return f"its report is none: it does not say `schema: {SCHEMA}`"
    if report.get("schema_version") != SCHEMA_VERSION:
        return (
            f"its report has schema version {report.get('schema_version')}; this page reads {SCHEMA_VERSION}"
        )
    return ""


def differences(name: str, previous: Report, report: Report) -> list[Change]:
    """What is different between two reports of a board: statuses, times, versions."""
    before = {check["id"]: check for check in previous["checks"]}
    pairs = [(before[check["id"]], check) for check in report["checks"] if check["id"] in before]
    steps: dict[tuple[str, str], list[str]] = {}
    for old, new in pairs:
        if old["status"] != new["status"]:
            steps.setdefault((old["status"], new["status"]), []).append(new["id"])
    found = [
        Change(step_kind(*step), f"{', '.join(checks)}: {step[0]} → {step[1]}", [name])
        for step, checks in steps.items()
    ]
    for old, new in pairs:
        short, long = sorted((old["seconds"], new["seconds"]))
        both_passed = old["status"] == new["status"] == "passed"
        if both_passed and long > TIMES_SLOWER * short and long - short >= SECONDS_SLOWER:
            kind = "slower" if new["seconds"] == long else "faster"
            text = f"{new['id']}: {seconds(old['seconds'])} → {seconds(new['seconds'])}"
            found.append(Change(kind, text, [name]))
    for part in ("board", "software"):
        for key, value in report[part].items():
            was = previous[part].get(key)
            if was and value and was != value:
                found.append(Change("other", f"{label(key)}: {was} → {value}", [name]))
    return found


def step_kind(before: str, after: str) -> str:
    """What a check's new status means."""
    if after in ("failed", "error"):
        return "broken"
    return "fixed" if after == "passed" and before != "skipped" else "other"


def board(name: str, report: Any, previous: Any, problem: str = "") -> Board:
    """A board with its report and the one before; both may be missing or no report at all.

    `problem` says why the report could not be read.
    """
    known = None if previous is None or unreadable(previous) else clean(previous)
    reason = problem or (NOT_VERIFIED if report is None else unreadable(report))
    if reason:
        lost = [Change("broken", f"{STATUS[known['exit_code']]} → not verified", [name])] if known else []
        return Board(name, "unverified", None, clean(reason), known, lost)
    current = clean(report)
    changes = differences(name, known, current) if known else ()
    return Board(name, STATUS[current["exit_code"]], current, "", known, changes)


def fleet(started: str, boards: Sequence[Board], left_out: Sequence[Board] = ()) -> Fleet:
    """Boards in the order in which they need attention, each group by name."""
    order = ("failed", "error", "unverified", "passed")
    return Fleet(
        started,
        sorted(boards, key=lambda one: (order.index(one.status), natural(one.name))),
        sorted(left_out, key=lambda one: natural(one.name)),
    )


def index(view: Fleet) -> dict[str, Any]:
    """The content of index.json."""
    return {
        "schema": "jetson-k3s/verify-fleet",
        "schema_version": SCHEMA_VERSION,
        "ok": view.exit_code == 0,
        "exit_code": view.exit_code,
        "started": view.started,
        "simulated": view.simulated,
        "boards": [
            {
                "name": board.name,
                "status": board.status,
                "simulated": board.simulated,
                "failures": list(board.report["failures"]) if board.report else [board.reason],
            }
            for board in view.boards
        ],
        "left_out": [board.name for board in view.left_out],
    }


def line(view: Fleet) -> str:
    """The fleet's result in one line; what is not well is named, and virtual boards."""
    words = {"failed": "failed", "error": "not finished", "unverified": "not verified"}
    plain = any(board.report and not is_board(board.report) for board in view.boards)
    parts = [f"{view.count('passed')} of {len(view.boards)} {'hosts' if plain else 'boards'} have passed"]
    for status, word in words.items():
        names = [board.name for board in view.boards if board.status == status]
        if names:
            parts.append(f"{word}: {', '.join(names)}")
    virtual = [board.name for board in view.boards if board.simulated]
    if virtual:
        parts.append(f"SIMULATED: {'all' if 1 < len(virtual) == len(view.boards) else ', '.join(virtual)}")
    return "; ".join(parts)


def seconds(value: float) -> str:
    """A duration for people, in seconds or minutes."""
    if value >= 99.5:  # noqa: PLR2004 - where three digits begin
        return f"{int(value + 0.5) // 60} min {int(value + 0.5) % 60:02} s"
    if value < 0.05:  # noqa: PLR2004 - less would be shown as 0
        return "<0.1 s"
    return f"{value:.0f} s" if value >= 9.95 else f"{value:.1f} s"  # noqa: PLR2004 - where two begin


LABELS = {
    "l4t": "L4T",
    "soc": "SoC",
    "jetpack": "JetPack",
    "k3s": "K3s",
    "device_query": "deviceQuery",
    "non-root": "Non-root",
    "cores_per_multiprocessor": "Cores per multiprocessor",
    "memory_bytes": "Memory",
    "jtop": "jtop",
}


def label(key: str) -> str:
    """The words for a key of a report or the id of a check."""
    return LABELS.get(key) or re.sub("[-_]", " ", key).capitalize()
