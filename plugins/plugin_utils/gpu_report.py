# SPDX-License-Identifier: Apache-2.0
"""A verification report as text for people."""

from __future__ import annotations

from typing import Any

VERDICTS = ("PASSED", "FAILED", "NOT VERIFIED")  # by exit code
# Checks whose events prove which pod had the GPU and which pod was Pending.
SCENES = ("concurrency", "time-slicing")


def counts(report: dict[str, Any]) -> str:
    """How many checks there are of each status."""
    statuses = [check["status"] for check in report["checks"]]
    words = {"passed": "passed", "failed": "failed", "error": "not finished", "skipped": "skipped"}
    parts = [f"{statuses.count(key)} {word}" for key, word in words.items() if key in statuses]
    return f"{len(statuses)} checks: {', '.join(parts)}"


def trouble(check: dict[str, Any]) -> list[str]:
    """The lines about a check that was not passed."""
    if check["status"] == "skipped":
        return [f"  skipped {check['id']}: {check['reason']}"]
    lines = [
        f"  {'FAILED' if check['status'] == 'failed' else 'NOT FINISHED'} {check['id']}: {check['reason']}"
    ]
    if check.get("fix"):
        lines.append(f"    fix: {check['fix']}")
    if check.get("url"):
        lines.append(f"    url: {check['url']}")
    return lines


def summary(report: dict[str, Any]) -> str:
    """A few lines per board: verdict, deviceQuery, the scene with its times, and what was not passed."""
    board, software, gpu = report["board"], report["software"], report["gpu"]
    simulated = " (SIMULATED board)" if report["simulated"] else ""
    lines = [
        f"{board['name']}: {VERDICTS[report['exit_code']]}{simulated}, {board['model']}, "
        f"JetPack {board['jetpack']}",
        f"  {software['k3s'] or 'K3s not known'}, allocatable {gpu['resource']}: {gpu['allocatable']}; "
        f"{counts(report)} in {report['seconds']:.0f} s",
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
        if check["status"] != "passed":
            lines.extend(trouble(check))
    ids = {check["id"] for check in report["checks"]}
    lines.extend(f"  {line}" for line in report["failures"] if line.partition(":")[0] not in ids)
    return "\n".join(lines)


FILTERS = {"gpu_report_summary": summary}
