# SPDX-License-Identifier: Apache-2.0
"""A verification report as text for people."""

from __future__ import annotations

from typing import Any


def summary(report: dict[str, Any]) -> str:
    """A few lines per board: verdict, deviceQuery, and the scene with its times."""
    query = report.get("device_query") or {}
    simulated = " (SIMULATED board)" if query.get("simulated") else ""
    verdict = "OK" if report["ok"] else "NOT OK"
    lines = [
        f"{report['board']}: {verdict}{simulated}, {report['model']}, JetPack {report['jetpack']}",
        f"  {report['k3s']}, allocatable nvidia.com/gpu: {report.get('allocatable', 0)}",
    ]
    if query:
        lines.append(
            f"  deviceQuery: {query['device']}, compute capability {query['compute_capability']}, "
            f"{query['multiprocessors']} multiprocessors, Result = {query['result']}"
        )
    lines.extend(f"  {event['at']}  {event['event']}" for event in report["scene"])
    lines.extend(f"  failed: {failure}" for failure in report["failures"])
    return "\n".join(lines)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {"gpu_verify_summary": summary}
