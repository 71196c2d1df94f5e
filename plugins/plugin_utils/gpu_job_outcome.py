# SPDX-License-Identifier: Apache-2.0
"""What became of a person's job on a board: from what was observed to passed, failed, or not verified.

Pure functions. A job that fails, or does not end, has failed. Where the board or the server is gone, or the
job got no place on the node, nothing is known about the job: it is not verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Seen = Mapping[str, Any]
PASSED, FAILED, ERROR = "passed", "failed", "error"
# A node is NotReady 40 s after its kubelet's last sign. It may come back after a short loss of the network.
LOST_SECONDS = 30
# The kubelet tries these again and again, and needs another image or manifest.
HOPELESS = (
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "ImagePullBackOff",
    "CreateContainerError",
    "RunContainerError",
)
# Reasons of containers whose program never ran: of dockershim and cri-dockerd, and of containerd.
NEVER_RAN = ("ContainerCannotRun", "StartError", "RunContainerError")
# The kernel's answer to a program for another processor, and a registry's for an image without this one.
WRONG_ARCHITECTURE = ("exec format error", "no matching manifest", "does not match the specified platform")
NOT_ADMITTED = (
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "OutOfcpu",
    "OutOfmemory",
    "NodeShutdown",
    "Shutdown",
)
KILLED = 137


class Outcome(NamedTuple):
    """The job's result."""

    status: str
    reason: str = ""
    fix: str = ""
    exit_code: int | None = None


def build_fix(architecture: str) -> str:
    """What to do about a program for another processor."""
    return f"Build the image for the board: docker buildx build --platform linux/{architecture} ..."


def own(seen: Seen, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """States of the person's containers."""
    pod = seen.get("pod") or {}
    return [one for one in pod.get("containers", ()) if one["name"] in names]


def lost(seen: Seen, boot_id: str, unready_seconds: float) -> Outcome | None:
    """The outcome if the board is gone, or was started again."""
    node = seen["node"]
    if not node["known"]:
        return Outcome(ERROR, node["reason"], "Run playbooks/site.yml: it makes the board a node again.")
    if node["boot_id"] and boot_id and node["boot_id"] != boot_id:
        return Outcome(
            ERROR,
            "the board restarted while the job ran",
            "Find out why on the board: its power supply, its temperature, and `journalctl --boot -1`.",
        )
    if not node["ready"] and unready_seconds >= LOST_SECONDS:
        return Outcome(
            ERROR,
            f"the board does not answer any more: {node['reason']}",
            "Check its power, its network and its serial console.",
        )
    return None


def of_pod(pod: Mapping[str, Any]) -> Outcome | None:
    """The outcome if the kubelet ended the pod, or did not admit it."""
    reason, message = pod["reason"], pod["message"]
    if reason == "Evicted":
        return Outcome(
            FAILED,
            f"the kubelet ended the job: {message or reason}",
            "Let the job write less, or raise its limit: --disk, or --artifacts-limit for /results.",
        )
    if reason in NOT_ADMITTED:
        return Outcome(
            ERROR, f"the kubelet did not admit the job: {reason}: {message}", "Run the same command again."
        )
    return None


def of_waiting(states: Sequence[Mapping[str, Any]], architecture: str) -> Outcome | None:
    """The outcome if a container cannot start."""
    for one in states:
        if one["state"] == "waiting" and one["reason"] in HOPELESS:
            said = f"{one['reason']}: {one['message']}" if one["message"] else one["reason"]
            if any(words in said for words in WRONG_ARCHITECTURE):
                return Outcome(FAILED, f"container {one['name']}: {said}", build_fix(architecture))
            fix = "Check the name of the image, and that the board reaches its registry (k3s_registries)."
            return Outcome(FAILED, f"container {one['name']} does not start: {said}", fix)
    return None


def of_ended(
    states: Sequence[Mapping[str, Any]], names: Sequence[str], architecture: str, output: str
) -> Outcome | None:
    """The outcome if a container has failed, or if all have ended."""
    for one in states:
        code = one["exit_code"]
        if one["state"] != "terminated" or not code:
            continue
        where = f"container {one['name']}" if len(names) > 1 else "the job"
        if any(words in f"{one['message']}\n{output}" for words in WRONG_ARCHITECTURE):
            said = one["message"] or output.strip().splitlines()[-1]
            return Outcome(FAILED, f"{where} cannot run here: {said}", build_fix(architecture), code)
        if one["reason"] in NEVER_RAN:
            fix = "Check the command: the program has to be in the image, and executable."
            return Outcome(FAILED, f"{where} did not start: {one['message'] or one['reason']}", fix, code)
        if one["reason"] == "OOMKilled":
            fix = "Let it use less memory, or raise the limit in the manifest. CPU and GPU share the memory."
            return Outcome(FAILED, f"{where} used more memory than it may have", fix, code)
        killed = " (it was killed by SIGKILL)" if code == KILLED else ""
        return Outcome(FAILED, f"{where} ended with exit status {code}{killed}", "Read its output.", code)
    ended = {one["name"] for one in states if one["state"] == "terminated"}
    return Outcome(PASSED, "", "", 0) if ended >= set(names) else None


def at_limit(seen: Seen, names: Sequence[str], limit: int) -> Outcome:
    """The outcome at the end of the job's time."""
    pod, states = seen.get("pod"), own(seen, names)
    if any(one["state"] != "waiting" for one in states):
        running = [one["name"] for one in states if one["state"] == "running"]
        which = f" ({', '.join(running)})" if running and len(names) > 1 else ""
        return Outcome(
            FAILED,
            f"the job did not end within {limit} s{which}",
            "Read its output. If it only needs more time, raise --timeout.",
        )
    why = "; ".join(seen.get("warnings", ())[-2:])
    if pod and not pod["scheduled"]:
        return Outcome(
            ERROR,
            f"the job got no place on the node within {limit} s: {pod['unscheduled'] or why or 'no reason'}",
            "If another pod uses the GPU or the memory, end it, or raise --timeout to wait for it.",
        )
    waits = ", ".join(f"{one['name']}: {one['reason']}" for one in states if one["reason"])
    return Outcome(
        ERROR,
        f"the job did not start within {limit} s: {why or waits or 'no reason given'}",
        "If its image is large, pull it before the test, or raise --timeout.",
    )


def judge(
    seen: Seen,
    *,
    names: Sequence[str],
    boot_id: str,
    architecture: str,
    output: str,
    elapsed: float,
    unready_seconds: float,
    limit: int,
) -> Outcome | None:
    """The job's outcome by the last observation, None while it goes on.

    `names` are the person's containers, `output` is the end of what the job has written. `elapsed` and
    `unready_seconds` are the seconds since its creation, and since the node answers no more.
    """
    pod, states = seen.get("pod"), own(seen, names)
    gone = lost(seen, boot_id, unready_seconds)
    if gone or not seen["node"]["ready"]:
        return gone
    found = (
        (pod and of_pod(pod))
        or of_ended(states, names, architecture, output)
        or of_waiting(states, architecture)
    )
    if found:
        return found
    if pod and pod["phase"] == "Failed":
        return Outcome(FAILED, f"the pod failed: {pod['reason']}: {pod['message']}", "Read its output.")
    if elapsed >= limit or seen.get("job_failed") == "DeadlineExceeded":
        return at_limit(seen, names, limit)
    return None
