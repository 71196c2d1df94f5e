# SPDX-License-Identifier: Apache-2.0
"""A person's job on one node: its pod, its output, its files, and the state of the node.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

import calendar
import json
import os
import re
import select
import subprocess
import time
from typing import Dict, List, Optional, Sequence, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_pods import Namespace
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    K3S,
    Data,
    KubectlError,
    condition,
    get,
    is_true,
    listed,
    run,
)

PREFIX = "gpu-test-"
AGENT = "tegra-gpu-agent"
METERS = "app.kubernetes.io/name in (tegra-device-plugin, {})".format(AGENT)
# Of the plugin's metrics, and of the agent's.
PORTS = (9400, 9401)
# The node agent's, else the plugin's with units (docs/monitoring.md).
MEMORY = re.compile(
    r"^tegra_(?:gpu_agent_container|device_plugin)_memory_used_bytes\{([^}]*)\} ([0-9.e+]+)$", re.MULTILINE
)
# Of one round, in bytes: a job that writes faster loses lines, and its log says so.
ROUND_BYTES = 4 << 20
# kubectl prints a time with nanoseconds in front of each line; the API takes one with seconds.
STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) ")
LEFT_OUT = "[jetson-k3s: the job wrote more than can be kept; lines are missing here]"
# A board that is off keeps a call waiting.
KUBECTL_SECONDS = 20


def namespace_of(params: Data) -> Namespace:
    """The namespace of a node's test. `params` has its `node` and `timeout`."""
    return Namespace(params, PREFIX)


def containers(pod: Data) -> List[Data]:
    """States of a pod's containers, init containers first: name, state, reason, message, exit_code."""
    found = []
    status = pod.get("status") or {}
    for one in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        state = one.get("state") or {}
        name = next(iter(state), "waiting")
        detail = state.get(name) or {}
        found.append(
            {
                "name": one["name"],
                "state": name,
                "reason": detail.get("reason") or "",
                "message": detail.get("message") or "",
                "exit_code": detail.get("exitCode"),
                "started": detail.get("startedAt") or "",
                "finished": detail.get("finishedAt") or "",
                # Docker's image id tells whether the container was ever made.
                "ran": bool(one.get("containerID")),
            }
        )
    return found


def pod_state(pods: Sequence[Data]) -> Optional[Data]:
    """The job's pod as the controller judges it, None without one."""
    live = [one for one in pods if "deletionTimestamp" not in one["metadata"]]
    if not live and not pods:
        return None
    pod = (live or list(pods))[-1]
    status = pod.get("status") or {}
    scheduled = condition(pod, "PodScheduled")
    return {
        "name": pod["metadata"]["name"],
        "phase": status.get("phase") or "Pending",
        "reason": status.get("reason") or "",
        "message": status.get("message") or "",
        "scheduled": scheduled.get("status") == "True",
        "unscheduled": scheduled.get("message") or "",
        "containers": containers(pod),
    }


def node_state(name: str) -> Data:
    """Whether a node answers, and which start of the board this is."""
    node = get("node", name)
    if node is None:
        return {"known": False, "ready": False, "boot_id": "", "reason": "the cluster has no node " + name}
    ready = condition(node, "Ready")
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return {
        "known": True,
        "ready": is_true(node, "Ready"),
        "boot_id": info.get("bootID") or "",
        "reason": "" if is_true(node, "Ready") else ready.get("message") or "its node is not Ready",
    }


def next_lines(text: str, cursor: Data, ended: bool = False) -> Tuple[str, Data]:
    """Lines of a log that are new, without their times, and the next cursor.

    The last line of a program that has not `ended` may be unfinished. A cursor is the second of the last line
    (`since`) and how many lines of it were read (`read`).
    """
    since, seen, fresh = cursor.get("since", ""), int(cursor.get("read", 0)), []
    skip = seen
    # Not splitlines(): a program may write other characters that end a line.
    lines = text.split("\n")
    unfinished, cut = lines.pop(), len(text) >= ROUND_BYTES
    if unfinished and ended and not cut:
        lines.append(unfinished)
    for line in lines:
        stamp = STAMP.match(line)
        second = stamp.group(1) + stamp.group(2) if stamp else since
        if second == since:
            if skip > 0:
                skip -= 1
                continue
            seen += 1
        else:
            since, seen, skip = second, 1, 0
        fresh.append((line[stamp.end() :] if stamp else line) + "\n")
    if cut and not fresh:  # more than a round within one second: go on after it
        return LEFT_OUT + "\n", {"since": _later(since), "read": 0}
    return "".join(fresh), {"since": since, "read": seen}


def _later(second: str) -> str:
    """The next second of a time such as 2026-01-02T03:04:05Z. One with another zone stays."""
    if not second.endswith("Z"):
        return second
    moment = calendar.timegm(time.strptime(second, "%Y-%m-%dT%H:%M:%SZ")) + 1
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def new_output(namespace: str, pod: str, container: Data, cursor: Data) -> Tuple[str, Data]:
    """The lines that a container has written since the last round. '' while it cannot be read."""
    argv = ["logs", pod, "--namespace=" + namespace, "--container=" + container["name"], "--timestamps"]
    argv.append("--limit-bytes={}".format(ROUND_BYTES))
    if cursor.get("since"):
        argv.append("--since-time=" + cursor["since"])
    try:
        text = run(*argv, timeout=KUBECTL_SECONDS)
    except KubectlError:  # not started yet, or its node does not answer
        return "", cursor
    return next_lines(text, cursor, container["state"] == "terminated")


def gpu_memory(text: str, namespace: str) -> Dict[str, int]:
    """{pod: bytes} of a metrics page, for the pods of a namespace."""
    found: Dict[str, int] = {}
    for labels, value in MEMORY.findall(text):
        known = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if known.get("namespace") == namespace:
            pod = known.get("pod", "")
            found[pod] = found.get(pod, 0) + int(float(value))
    return found


def measured_gpu_memory(node: str, namespace: str) -> Dict[str, int]:
    """{pod: bytes} by the node agent, else by the plugin's ledgers; {} if neither measures it."""
    try:
        pods = listed(
            "pods", "--all-namespaces", "--selector=" + METERS, "--field-selector=spec.nodeName=" + node
        )
        pods.sort(key=lambda pod: PORTS.index(port_of(pod)), reverse=True)
        for pod in pods:
            page = "/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics".format(
                port=port_of(pod), **{key: pod["metadata"][key] for key in ("namespace", "name")}
            )
            found = gpu_memory(run("get", "--raw", page, timeout=KUBECTL_SECONDS), namespace)
            if found:
                return found
    except KubectlError:
        pass
    return {}


def port_of(pod: Data) -> int:
    """The port of a pod's metrics."""
    return PORTS[pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == AGENT]


def warnings(events: Sequence[Data]) -> List[str]:
    """Warnings about the job's objects, the newest last."""
    found = [
        "{}: {}".format(event.get("reason"), event.get("message"))
        for event in sorted(events, key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
        if event.get("type") == "Warning"
    ]
    return [text for place, text in enumerate(found) if text not in found[:place]][-20:]


def observe(namespace: Namespace, job: str, names: Sequence[str], cursors: Data) -> Data:
    """One look: the pod, the node, new output of the containers by name, and the next cursors."""
    kinds: Dict[str, List[Data]] = {"Pod": [], "Job": [], "Event": []}
    for item in listed("pods,jobs,events", "--namespace=" + namespace.name):
        kinds[item["kind"]].append(item)
    state = pod_state([pod for pod in kinds["Pod"] if pod["metadata"]["labels"].get("job-name") == job])
    node = node_state(namespace.params["node"])
    output, following = {}, dict(cursors)
    for container in state["containers"] if state else ():
        name = container["name"]
        if name in names and container["ran"] and node["ready"]:
            output[name], following[name] = new_output(
                namespace.name, state["name"] if state else "", container, following.get(name) or {}
            )
    return {
        "pod": state,
        "job_failed": next((condition(one, "Failed").get("reason") or "" for one in kinds["Job"]), ""),
        "node": node,
        "output": output,
        "cursors": following,
        "gpu_memory": {},
        "warnings": warnings(kinds["Event"]),
    }


def copy_out(argv: Sequence[str], path: str, most: int, seconds: float) -> Tuple[int, str]:
    """Write a command's output to a new file; return its exit status and the end of its error output.

    KubectlError if the output is larger than `most` bytes or takes longer than `seconds`.
    """
    deadline, size = time.monotonic() + seconds, 0
    process = subprocess.Popen(
        [K3S, "kubectl", *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - they are pipes
    pipes, said = [process.stdout, process.stderr], b""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            while pipes:
                ready = select.select(pipes, [], [], max(0.0, deadline - time.monotonic()))[0]
                if not ready:
                    raise KubectlError("the files were not fetched within {:.0f} s".format(seconds))
                for pipe in ready:
                    block = os.read(pipe.fileno(), 1 << 16)
                    if not block:
                        pipes.remove(pipe)
                    elif pipe is process.stderr:
                        said = (said + block)[-4096:]
                    else:
                        size += len(block)
                        if size > most:
                            raise KubectlError("the board sent more than {} bytes of files".format(most))
                        file.write(block)
    finally:
        if process.poll() is None and pipes:
            process.kill()
        process.wait()
    return process.returncode, said.decode("utf-8", "replace").strip()


def listing(said: str, packed: bool) -> Data:
    """What the companion says of the results: files and bytes. ValueError if they were not `packed`."""
    for line in said.splitlines():
        if packed and line.startswith("{"):
            found = json.loads(line)
            return {"files": int(found["files"]), "bytes": int(found["bytes"])}
    raise ValueError(said or "no answer")
