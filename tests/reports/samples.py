# SPDX-License-Identifier: Apache-2.0
"""Made-up reports of boards in all the states that a report can be in, SIMULATED as the lab's boards are."""

import copy
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.unit.roles.loading import load

fleets = load("gpu_report/module_utils/report_fleet.py")
Report = dict[str, Any]

STARTED = datetime.fromisoformat("2026-11-21T01:02:03.456Z")
REFUSED = "failed to create shim task: OCI runtime create failed: unsupported device id: none"


def at(seconds: float) -> str:
    return (STARTED + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def passed(name: str) -> Report:
    """A report of a board that is well."""
    report: Report = json.loads(Path(__file__).with_name("passed.json").read_text())
    report["board"] |= {"name": name, "node": name}
    return report


def set_status(checks: list[Report], name: str, status: str, reason: str) -> Report:
    """Give a check another status and its reason; return it."""
    check = next(check for check in checks if check["id"] == name)
    check.update(status=status, reason=reason, evidence=[], events=[])
    if status == "skipped":
        check["seconds"] = 0.0
    return check


def failed(name: str) -> Report:
    """A report of a board whose container toolkit refuses the GPU, with the checks that need it skipped."""
    report = passed(name)
    check = set_status(report["checks"], "device-query", "failed", f"the pod was not created: {REFUSED}")
    check["events"] = [
        {"at": at(4.0), "event": "pod devicequery created"},
        {"at": at(4.9), "event": "pod devicequery Pending: ContainerCreating"},
        {"at": at(7.3), "event": "pod devicequery Failed: StartError"},
    ]
    check["fix"] = (
        "Let the container toolkit run in csv mode: "
        'mode = "csv" in /etc/nvidia-container-runtime/config.toml, then run the playbook again.'
    )
    events = f"Warning  Failed  kubelet  Error: failed to start container: {REFUSED}: unknown"
    check["diagnosis"] = [
        {"source": "events of pod devicequery", "lines": [events]},
        {"source": f"conditions of node {name}", "lines": ["Ready True KubeletReady"]},
    ]
    for other in ("non-root", "concurrency", "unified-memory"):
        set_status(report["checks"], other, "skipped", "deviceQuery did not run")
    report["gpu"]["device_query"] = None
    report.update(ok=False, exit_code=1, failures=[f"device-query: {check['reason']}"], seconds=9.8)
    return report


def error(name: str) -> Report:
    """A report of a board whose verification itself broke."""
    report = passed(name)
    why = "kubectl get pods: the server did not answer within 30 s"
    check = set_status(report["checks"], "plugin-registered", "error", why)
    check["fix"] = "See why the API server does not answer: systemctl status k3s on the server."
    for other in report["checks"][2:]:
        set_status(report["checks"], other["id"], "skipped", "plugin-registered could not be checked")
    report["gpu"]["device_query"] = None
    report.update(ok=False, exit_code=2, failures=[f"plugin-registered: {check['reason']}"], seconds=31.0)
    return report


def hostile(name: str) -> Report:
    """A failed board whose logs have everything in them that a page or an XML file could break on."""
    report = failed(name)
    check = next(check for check in report["checks"] if check["id"] == "device-query")
    nasty = (
        "</pre><script>document.title='owned'</script>&amp; ]]> {{ 7 * 7 }} "
        "\x00\x08\x1b[31mred\x1b[0m \ud800 \uffff"
    )
    check["reason"] = nasty
    check["evidence"] = [nasty, "x" * 400, "\u202eright to left"]
    check["diagnosis"] = [{"source": "log <img src=x onerror=alert(1)>", "lines": [nasty, "y" * 400]}]
    check["url"] = "javascript:alert(1)"
    report["board"]["model"] = nasty
    report["failures"] = [f"device-query: {nasty}"]
    return report


def slower(report: Report, check: str, seconds: float) -> Report:
    report = copy.deepcopy(report)
    next(one for one in report["checks"] if one["id"] == check)["seconds"] = seconds
    return report


def fleet(**reports: Any) -> Any:
    pairs = {name: value if isinstance(value, tuple) else (value, None) for name, value in reports.items()}
    return fleets.fleet(at(0), [fleets.board(name, *pair) for name, pair in pairs.items()])
