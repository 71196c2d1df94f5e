# SPDX-License-Identifier: Apache-2.0
"""A person's job in the report of its board: two more checks, and the key `job`.

The report keeps schema version 1, which allows more keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.project import page
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.redact import redact, redact_data
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_job_figures, gpu_verify

Data = dict[str, Any]
GUIDE = "docs/hardware-in-the-loop.md#when-a-job-does-not-pass"
JOB, ARTIFACTS = "job", "job-artifacts"
# Without these the node has no GPU to test.
NEEDS = ("plugin-registered", "allocatable")
TITLES = {
    JOB: ("The job succeeds on the board", "The job does not succeed on the board"),
    ARTIFACTS: ("The job's files are on this computer", "The job's files were not taken"),
}
PASSED, FAILED, UNVERIFIED = 0, 1, 2


def obstacle(checks: Sequence[Mapping[str, Any]]) -> str:
    """Why the job is not tried, by the board's own checks; '' if it is."""
    statuses = {check["id"]: check["status"] for check in checks}
    words = {"failed": "failed", "error": "could not be checked", "skipped": "was skipped"}
    return next(
        (f"needs {name}, which {words[statuses[name]]}" for name in NEEDS if statuses.get(name) in words), ""
    )


def entry(name: str, status: str, reason: str = "", **more: Any) -> Data:
    """An entry of the report's checks."""
    title, failure = TITLES[name]
    return {
        **gpu_verify.unanswered({"id": name, "title": title}, status, reason),
        "failure": failure if status == "failed" else "",
        "url": page(GUIDE),
        **more,
    }


def unanswered(result: Mapping[str, Any], problem: str) -> Data:
    """The check of a job about which no result came."""
    said = str(result.get("msg") or "no answer").strip().splitlines()
    fix = str(result.get("fix") or "The reason names the error: correct it and run the same command again.")
    return entry(JOB, "error", problem or said[-1], fix=fix)


def checks_of(result: Mapping[str, Any]) -> list[Data]:
    """The entries of a job, by the result of the action."""
    if result.get("skipped_because"):
        return [entry(JOB, "skipped", result["skipped_because"])]
    job = result.get("job")
    if not job:
        return [unanswered(result, "")]
    evidence = [f"image {image}" for image in job["images"]]
    evidence += [f"exit status {job['exit_code']}"] if job["exit_code"] is not None else []
    evidence += [] if job["gpu"] else ["the job asked for no GPU"]
    evidence += [gpu_job_figures.line(one) for one in job["figures"]]
    evidence += [f"throttled: {one}" for one in job["throttled"]]
    diagnosis = []
    if job["status"] != "passed":
        diagnosis = [
            {"source": source, "lines": lines}
            for source, lines in (("output of the job", job["tail"]), ("events of the job", job["warnings"]))
            if lines
        ]
    found = [
        entry(
            JOB,
            job["status"],
            job["reason"],
            seconds=job["seconds"],
            evidence=evidence,
            events=job["events"],
            diagnosis=diagnosis,
            fix=job["fix"],
        )
    ]
    files = job["artifacts"]
    if files is not None:
        evidence = [f"{files['count']} files, {files['bytes']} bytes"] if files["status"] == "passed" else []
        evidence += [f"left out, because it is a link: {name}" for name in files["left_out"]]
        found.append(entry(ARTIFACTS, files["status"], files["reason"], evidence=evidence, fix=files["fix"]))
    return found


def record(result: Mapping[str, Any]) -> Data | None:
    """The report's key `job`, None if the job did not run."""
    job = result.get("job")
    if not job:
        return None
    files = job["artifacts"] or {}
    return {
        "name": job["name"],
        "images": list(job["images"]),
        "status": job["status"],
        "exit_code": job["exit_code"],
        "seconds": job["seconds"],
        "limit_seconds": job["limit"],
        "output": job["output"],
        "artifacts": {"directory": files["directory"], "files": files["count"], "bytes": files["bytes"]}
        if files.get("status") == "passed"
        else None,
        "samples": job["samples"],
        "figures": list(job["figures"]),
        "throttled": list(job["throttled"]),
    }


def with_job(report: Mapping[str, Any], result: Mapping[str, Any]) -> Data:
    """The report of a board with its job. `result` is the registered result of the action gpu_job."""
    entries = redact_data(checks_of(result))
    checks = [*report["checks"], *entries]
    failures = [
        *report["failures"],
        *(f"{one['id']}: {one['reason']}" for one in entries if one["status"] in ("failed", "error")),
    ]
    statuses = {one["status"] for one in entries}
    left = (result.get("job") or {}).get("cleanup")
    if left:
        statuses.add("error")
        failures.append(f"cleaning up: {redact(left)}")
    code = FAILED if "failed" in statuses else UNVERIFIED if "error" in statuses else PASSED
    # 1 outweighs 2, as in all reports.
    codes = {report["exit_code"], code}
    exit_code = FAILED if FAILED in codes else max(codes)
    found = record(result)
    seconds = round(report["seconds"] + sum(one["seconds"] for one in entries), 3)
    return {
        **report,
        "ok": exit_code == PASSED,
        "exit_code": exit_code,
        "failures": failures,
        "seconds": seconds,
        "checks": checks,
        **({"job": redact_data(found)} if found else {}),
    }


FILTERS = {"gpu_job_obstacle": obstacle, "gpu_job_report": with_job}
