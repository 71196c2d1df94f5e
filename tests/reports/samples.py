# SPDX-License-Identifier: Apache-2.0
"""Made-up reports of boards in all the states that a report can be in, SIMULATED as the lab's boards are."""

import copy
from datetime import timedelta
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import report_fleet as fleets
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.moments import moment

Report = dict[str, Any]

STARTED = moment("2026-11-21T01:02:03.456Z")
REFUSED = "failed to create shim task: OCI runtime create failed: unsupported device id: none"


def at(seconds: float) -> str:
    return (STARTED + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


# Of each check the seconds that it took.
SECONDS = {
    "default-runtime": 0.3, "plugin-registered": 0.4, "allocatable": 0.1, "device-query": 3.2,
    "non-root": 2.7, "uninvited": 2.4, "concurrency": 8.9, "unified-memory": 0.1, "kubelet-restart": 0.0,
}  # fmt: skip
REPORT: Report = {
    "schema": "jetson-k3s/verify-report",
    "schema_version": 1,
    "ok": True,
    "exit_code": 0,
    "failures": [],
    "started": at(0),
    "seconds": 18.1,
    "mode": "standard",
    "simulated": True,
    "board": {
        "model": "Jetson AGX Orin Developer Kit", "module": "Jetson AGX Orin 64GB", "soc": "tegra234",
        "l4t": "36.4.3", "jetpack": "6.2", "memory_bytes": 64365932544,
        "power_mode": {"id": 2, "name": "MODE_30W"},
    },
    "software": {
        "k3s": "v1.33.5+k3s1", "container_runtime": "docker://27.5.1", "docker": "27.5.1",
        "container_toolkit": "1.16.2", "default_runtime": "nvidia",
        "device_plugin": "tegra-device-plugin:0.1.0", "device_query": "device-query:lab",
    },
    "gpu": {
        "resource": "nvidia.com/gpu", "allocatable": 1, "replicas": 1,
        "device_nodes": ["/dev/nvhost-ctrl-gpu", "/dev/nvhost-gpu", "/dev/nvmap"],
        "device_query": {
            "device": "Orin", "compute_capability": "8.7", "multiprocessors": 16,
            "cores_per_multiprocessor": 128, "memory_bytes": 64365932544, "integrated": True,
            "result": "PASS", "phase": "Succeeded", "simulated": True,
            "output": ['Device 0: "Orin"', "Result = PASS"],
        },
    },
}  # fmt: skip


def passed(name: str) -> Report:
    """A report of a board that is well."""
    report = copy.deepcopy(REPORT) | {"checks": [passed_check(one) for one in SECONDS]}
    report["board"] |= {"name": name, "node": name}
    waits = "pod2 Pending: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
    told = {12.0: "pod1 Running, has the GPU", 14.2: waits, 18.1: "pod1 ended", 20.9: "pod2 Running"}
    check(report, "concurrency")["events"] = [
        {"at": at(seconds), "event": event} for seconds, event in told.items()
    ]
    set_status(report, "kubelet-restart", "skipped", "only in mode full: it restarts the kubelet")
    return report


def passed_check(name: str) -> Report:
    return {
        "id": name, "title": f"Title of {name}", "failure": "", "status": "passed", "seconds": SECONDS[name],
        "evidence": [f"{name}: as it must be"], "events": [], "reason": "", "diagnosis": [], "fix": "",
        "url": f"docs/troubleshooting.md#{name}",
    }  # fmt: skip


def check(report: Report, name: str) -> Report:
    found: Report = next(one for one in report["checks"] if one["id"] == name)
    return found


def set_status(report: Report, name: str, status: str, reason: str) -> Report:
    """Give a check another status and its reason; return it."""
    found = check(report, name)
    found.update(status=status, reason=reason, evidence=[], events=[])
    if status == "skipped":
        found["seconds"] = 0.0
    return found


def failed(name: str) -> Report:
    """A report of a board whose container toolkit refuses the GPU, with the checks that need it skipped."""
    report = passed(name)
    found = set_status(report, "device-query", "failed", f"the pod was not created: {REFUSED}")
    found["failure"] = "A pod does not run deviceQuery"
    found["events"] = [
        {"at": at(4.0), "event": "pod devicequery created"},
        {"at": at(4.9), "event": "pod devicequery Pending: ContainerCreating"},
        {"at": at(7.3), "event": "pod devicequery Failed: StartError"},
    ]
    found["fix"] = (
        "Let the container toolkit run in csv mode: "
        'mode = "csv" in /etc/nvidia-container-runtime/config.toml, then run the playbook again.'
    )
    events = f"Warning  Failed  kubelet  Error: failed to start container: {REFUSED}: unknown"
    found["diagnosis"] = [
        {"source": "events of pod devicequery", "lines": [events]},
        {"source": f"conditions of node {name}", "lines": ["Ready True KubeletReady"]},
    ]
    for other in ("non-root", "concurrency", "unified-memory"):
        set_status(report, other, "skipped", "deviceQuery did not run")
    report["gpu"]["device_query"] = None
    report.update(ok=False, exit_code=1, failures=[f"device-query: {found['reason']}"], seconds=9.8)
    return report


def in_use(name: str) -> Report:
    """A report of a board whose GPU somebody uses: no pod has tried it."""
    report = passed(name)
    for one in list(SECONDS)[3:]:
        set_status(report, one, "skipped", "the GPU is in use by default/train")
    report["gpu"]["device_query"] = None
    return report


def error(name: str) -> Report:
    """A report of a board whose verification itself broke."""
    report = passed(name)
    why = "kubectl get pods: the server did not answer within 30 s"
    found = set_status(report, "plugin-registered", "error", why)
    found["fix"] = "See why the API server does not answer: systemctl status k3s on the server."
    for other in report["checks"][2:]:
        set_status(report, other["id"], "skipped", "plugin-registered could not be checked")
    report["gpu"]["device_query"] = None
    report.update(ok=False, exit_code=2, failures=[f"plugin-registered: {found['reason']}"], seconds=31.0)
    return report


def hostile(name: str) -> Report:
    """A failed board whose logs have everything in them that a page or an XML file could break on."""
    report = failed(name)
    query = check(report, "device-query")
    nasty = (
        "</pre><script>document.title='owned'</script>&amp; ]]> {{ 7 * 7 }} "
        "\x00\x08\x1b[31mred\x1b[0m \ud800 \uffff"
    )
    query["reason"] = nasty
    query["evidence"] = [nasty, "x" * 400, "\u202eright to left"]
    query["diagnosis"] = [{"source": "log <img src=x onerror=alert(1)>", "lines": [nasty, "y" * 400]}]
    query["url"] = "javascript:alert(1)"
    report["board"]["model"] = nasty
    report["failures"] = [f"device-query: {nasty}"]
    return report


def slower(report: Report, name: str, seconds: float) -> Report:
    report = copy.deepcopy(report)
    check(report, name)["seconds"] = seconds
    return report


def fleet(**reports: Any) -> Any:
    pairs = {name: value if isinstance(value, tuple) else (value, None) for name, value in reports.items()}
    return fleets.fleet(at(0), [fleets.board(name, *pair) for name, pair in pairs.items()])
