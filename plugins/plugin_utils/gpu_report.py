# SPDX-License-Identifier: Apache-2.0
"""A verification report as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import report_fleet
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.controller_paths import displayed_path

VERDICTS = ("PASSED", "FAILED", "NOT VERIFIED")  # by exit code
# Checks whose events prove which pod had the GPU and which pod was Pending.
SCENES = ("concurrency", "time-slicing")


def summary(report: dict[str, Any]) -> str:
    """The verdict in a line or two."""
    parts = [
        f"{report['board']['name']}: {VERDICTS[report['exit_code']]}",
        report_fleet.checked(report["checks"]),
        *(["SIMULATED board"] if report["simulated"] else []),
    ]
    why = report_fleet.unproven(report["checks"]) if report["ok"] else ""
    return ", ".join(parts) + (f"\n  no pod tried the GPU: {why}" if why else "")


def failures(report: dict[str, Any], path: str) -> str:
    """What was not passed, each check with its reason and fix. `path` is the report's file."""
    lines = [f"{report['board']['name']}: verification failed"]
    for check in report["checks"]:
        if check["status"] in ("failed", "error"):
            lines.extend(_failure(check))
    lines.extend(f"  {line}" for line in _loose_ends(report))
    return conclusion("\n".join(lines), path)


def conclusion(text: str, path: str) -> str:
    """A text, if there is any, and where the complete report is."""
    return "\n".join([*filter(None, [text]), f"The complete report is {displayed_path(path)}."])


def _failure(check: dict[str, Any]) -> Iterator[str]:
    yield f"  {check['id']}: {report_fleet.heading(check)}"
    yield f"    {check['reason']}"
    for key in ("fix", "url"):
        if check.get(key):
            yield f"    {key}: {check[key]}"


def _loose_ends(report: dict[str, Any]) -> list[str]:
    ids = {check["id"] for check in report["checks"]}
    return [line for line in report["failures"] if line.partition(":")[0] not in ids]


def details(report: dict[str, Any]) -> str:
    """What is known of the board, the scene with its times, and the checks without an answer."""
    board, software, gpu = report["board"], report["software"], report["gpu"]
    simulated = " (SIMULATED board)" if report["simulated"] else ""
    offers = f", allocatable {gpu['resource']}: {gpu['allocatable']}" if report_fleet.is_board(report) else ""
    lines = [
        f"{board['name']}{simulated}, {report_fleet.computer(report)}",
        f"  {software['k3s'] or 'K3s not known'}{offers}; "
        f"{report_fleet.checked(report['checks'])} in {report['seconds']:.0f} s",
    ]
    query = gpu.get("device_query")
    if query:
        lines.append(
            f"  deviceQuery: {query['device']}, compute capability {query['compute_capability']}, "
            f"{query['multiprocessors']} multiprocessors, Result = {query['result']}"
        )
    for check in report["checks"]:
        if check["id"] in SCENES:
            lines.extend(f"  {event['at']}  {event['event']}" for event in check["events"])
        if check["status"] == "skipped":
            lines.append(f"  skipped {check['id']}: {check['reason']}")
    return "\n".join(lines)


FILTERS = {
    "gpu_report_details": details,
    "gpu_report_failures": failures,
    "gpu_report_conclusion": conclusion,
    "gpu_report_summary": summary,
}
