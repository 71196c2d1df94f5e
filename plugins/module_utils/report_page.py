# SPDX-License-Identifier: Apache-2.0
"""A fleet's reports as one HTML page that needs nothing else: no script, no other file, no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import moment
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_fleet import (
    computer,
    heading,
    label,
    seconds,
)
from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from ansible_collections.jetson_k3s.cluster.plugins.module_utils.report_fleet import Board, Fleet, Report

# The status without colour.
MARKS = {"passed": "✓", "failed": "✗", "error": "!", "skipped": "\N{EN DASH}", "unverified": "?"}
WORDS = {"error": "not finished", "unverified": "not verified"}
MIB = 1 << 20
# Said elsewhere on the page.
SHOWN = ("name", "output", "phase", "simulated", "device_nodes")
# Shown first, in this order.
FIRST = ("model", "module", "soc", "memory_bytes", "l4t", "jetpack", "k3s", "docker", "device", "resource")


def when(text: str) -> str:
    """A time stamp for people."""
    return moment(text).strftime("%Y-%m-%d %H:%M:%S UTC")


def width(value: float, longest: float) -> str:
    """Length of a bar in percent of the longest; never so short that it cannot be seen."""
    return f"{max(1.0, 100 * value / longest) if longest > 0 else 1.0:.1f}"


def timeline(events: Sequence[Report]) -> list[dict[str, Any]]:
    """Events with their offset from the first in seconds, and in percent of the total."""
    if not events:
        return []
    begin = moment(events[0]["at"])
    offsets = [(moment(event["at"]) - begin).total_seconds() for event in events]
    whole = max(offsets) or 1.0
    return [
        {"after": f"+{offset:.1f} s", "percent": f"{1 + 98 * offset / whole:.1f}", "text": event["event"]}
        for offset, event in zip(offsets, events, strict=True)
    ]


def slowest(board: Board) -> float:
    """Seconds of the longest check, now or the time before: what the bars are measured by."""
    reports = [report for report in (board.report, board.previous) if report]
    return max((check["seconds"] for report in reports for check in report["checks"]), default=0.0)


def earlier(board: Board, check: str) -> float | None:
    """Seconds that a check took the time before; None when it was not there or did not pass."""
    checks = board.previous["checks"] if board.previous else ()
    return next((one["seconds"] for one in checks if one["id"] == check and one["status"] == "passed"), None)


def facts(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known of a part of the report, as words; what has a place of its own is left out."""
    found = []
    for key in sorted(part, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST)):
        value = part[key]
        if key in SHOWN or value is None or value == "" or isinstance(value, Mapping):
            continue
        if key == "memory_bytes":
            text = f"{value / MIB:,.0f} MiB"
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        else:
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        found.append((label(key), text))
    return found


def all_facts(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """The facts of a report in the groups in which they are shown."""
    gpu = report.get("gpu") or {}
    query = gpu.get("device_query") or {}
    groups = [("Board", report["board"]), ("Software", report["software"]), ("GPU", {**gpu, **query})]
    return [(title, found) for title, part in groups if (found := facts(part))]


def page(fleet: Fleet, templates: Path) -> str:
    """The page; `templates` is the role's directory of them."""
    # Everything is escaped unless a template says otherwise, and none does but for the style sheet.
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        heading=heading,
        label=label,
        seconds=seconds,
        when=when,
        timeline=timeline,
        width=width,
        all_facts=all_facts,
    )
    environment.globals.update(MARKS=MARKS, WORDS=WORDS, slowest=slowest, earlier=earlier, computer=computer)
    style = (templates / "report.css").read_text(encoding="utf-8")
    # Should a log ever get past the escaping, the browser itself refuses what is not this style sheet.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        fleet=fleet,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    )
