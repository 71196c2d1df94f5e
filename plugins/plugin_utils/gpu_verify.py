# SPDX-License-Identifier: Apache-2.0
"""What the stages of a verification have found, put together as one report (schema version 1)."""

from __future__ import annotations

from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import moment
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import host_kinds

SCHEMA = "jetson-k3s/verify-report"
SCHEMA_VERSION = 1
GUIDE = "docs/troubleshooting.md"
MEND = "The reason names the error: correct it and run playbooks/verify.yml again."
# Contract of the exit code: all passed or skipped, a check failed, verification itself did not work.
PASSED, FAILED, UNVERIFIED = 0, 1, 2
CLOSE = "close"
# The stages that start a pod for a later one.
BEFORE = ("before_restart", "before_reboot")

Check = dict[str, Any]
Result = dict[str, Any]


def applicable(catalogue: list[Check], state: dict[str, Any]) -> list[Check]:
    """The checks for the kind of host, for how pods ask, and for a GPU that is shared or not, limited or not.

    One that is not known is neither.
    """
    api, gpu = state["api"], state["gpu"]
    sharing = "shared" if gpu.get("replicas", 1) > 1 else "exclusive"
    limited = gpu.get("limited", False)
    return [
        check
        for check in catalogue
        if check.get("kind", host_kinds.BOARD) == state["kind"]
        and check.get("sharing", sharing) == sharing
        and check.get("limited", limited) == limited
        and check.get("api", api) == api
    ]


def of_stage(catalogue: list[Check], stage: str, state: dict[str, Any]) -> list[Check]:
    """The checks of one stage."""
    return [check for check in applicable(catalogue, state) if stage in check["stages"]]


def complaint(result: Result) -> str:
    """Why a stage gave no answer, in one line."""
    said = result.get("module_stderr") or result.get("msg") or "no answer"
    lines: list[str] = str(said).strip().splitlines()
    return lines[-1] if lines else "no answer"


def unanswered(check: Check, status: str, reason: str, fix: str = "") -> Check:
    """The entry of a check that nobody made."""
    return {
        "id": check["id"],
        "title": check["title"],
        "failure": "",
        "status": status,
        "seconds": 0.0,
        "evidence": [],
        "events": [],
        "reason": reason,
        "diagnosis": [],
        "fix": fix,
        "url": page(f"{GUIDE}#{check['id']}"),
    }


def broken(checks: list[Check], result: Result, causes: dict[str, str]) -> list[Check]:
    """The entries of a stage's checks after the stage itself failed: one error, which the others refer to.

    `causes` has the check with the error by its reason. An earlier stage may have failed for the same reason.
    """
    reason, entries = complaint(result), []
    for check in checks:
        first = causes.setdefault(reason, check["id"])
        if first == check["id"]:
            entries.append(unanswered(check, "error", reason, result.get("fix") or MEND))
        else:
            entries.append(unanswered(check, "skipped", f"not tried, for the same reason as {first}"))
    return entries


def state_after(
    results: dict[str, Result],
    catalogue: list[Check],
    busy: str,
    api: str = "device-plugin",
    kind: str = host_kinds.BOARD,
) -> dict[str, Any]:
    """What is known after these stages (stage: registered result, in order; one that did not run is empty).

    `api` is how pods ask for the GPU, `kind` that of the host. `busy` says why no pod may be started; empty
    if pods may.
    """
    state: dict[str, Any] = {"checks": {}, "gpu": {}, "software": {}, "times": [], "broken": {}}
    state.update(busy=busy, api=api, kind=kind, **dict.fromkeys(BEFORE))
    causes: dict[str, str] = {}
    for stage, result in results.items():
        if not result or result.get("skipped"):
            continue
        part = result.get("part", {})
        state["gpu"].update(part.get("gpu", {}))
        state["software"].update(part.get("software", {}))
        state["busy"] = part.get("busy") or state["busy"]
        state.update({name: part[name] for name in BEFORE if part.get(name)})
        state["checks"].update({entry["id"]: entry for entry in part.get("checks", [])})
        state["times"] += [part[key] for key in ("started", "ended") if key in part]
        if "ended" not in part:
            state["broken"][stage] = complaint(result)
            left = [
                check for check in of_stage(catalogue, stage, state) if check["id"] not in state["checks"]
            ]
            state["checks"].update({entry["id"]: entry for entry in broken(left, result, causes)})
    state["statuses"] = {name: entry["status"] for name, entry in state["checks"].items()}
    return state


def progress(state: dict[str, Any], checks: list[Check]) -> str:
    """What has become of a stage's checks, for the screen while the next one runs."""
    said = []
    for check in checks:
        entry = state["checks"].get(check["id"])
        if entry is not None:
            verdict = f"{entry['id']} {entry['status']} ({entry['seconds']:.1f} s)"
            said.append(f"{verdict}: {entry['reason']}" if entry["reason"] else verdict)
    return "; ".join(said)


def seconds_between(times: list[str]) -> float:
    """Seconds from the first time to the last; 0 without any."""
    moments = [moment(time) for time in times]
    return round((max(moments) - min(moments)).total_seconds(), 3) if moments else 0.0


def report(
    state: dict[str, Any],
    catalogue: list[Check],
    *,
    mode: str,
    board: dict[str, Any],
    software: dict[str, Any],
    simulated: bool,
    now: str,
) -> dict[str, Any]:
    """The report on one board; `now` is the controller's time, for a run in which no stage answered.

    `simulated` says that it is a virtual board. The output of a pod may say so, too.
    """
    checks = [
        state["checks"].get(check["id"]) or unanswered(check, "skipped", check.get("otherwise", "not tried"))
        for check in applicable(catalogue, state)
    ]
    failures = [
        f"{check['id']}: {check['reason']}" for check in checks if check["status"] in ("failed", "error")
    ]
    statuses = {check["status"] for check in checks}
    if CLOSE in state["broken"]:
        statuses.add("error")
        why = state["broken"][CLOSE]
        if why not in [reason for stage, reason in state["broken"].items() if stage != CLOSE]:
            failures.append(f"cleaning up: {why}")
    exit_code = FAILED if "failed" in statuses else UNVERIFIED if "error" in statuses else PASSED
    outputs = [state["gpu"].get(name) for name in ("device_query", "kernel")]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "ok": exit_code == PASSED,
        "exit_code": exit_code,
        "failures": failures,
        "started": min(state["times"], default=now),
        "seconds": seconds_between(state["times"]),
        "mode": mode,
        "simulated": simulated or any(output["simulated"] for output in outputs if output),
        "board": board,
        "software": software | state["software"],
        "gpu": {
            "resource": "nvidia.com/gpu",
            "allocatable": 0,
            "replicas": 1,
            "device_nodes": [],
            "device_query": None,
            **state["gpu"],
        },
        "checks": checks,
    }


FILTERS = {
    "gpu_verify_state": state_after,
    "gpu_verify_stage": of_stage,
    "gpu_verify_progress": progress,
    "gpu_verify_report": report,
}
