# SPDX-License-Identifier: Apache-2.0
"""What helps to see why a check did not pass: the node, the pods, their events and output, the plugin's log.

Runs on a K3s server, therefore Python 3.6 compatible.
"""

from typing import Callable, List, Optional, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import gpu_verify_claims as claims
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.gpu_verify_pods import (
    Namespace,
    holders,
    why,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import (
    Data,
    KubectlError,
    get,
    run,
)

# A node has a pod of one of them.
PLUGIN = "app.kubernetes.io/name in (tegra-device-plugin, tegra-dra-driver)"
PLUGIN_NAMESPACE = "kube-system"
LINES = 20


def plugin_pod(node: str) -> Optional[Data]:
    """The plugin's pod on a node; None without a pod that is not being deleted."""
    found = get(
        "pods",
        "--namespace=" + PLUGIN_NAMESPACE,
        "--selector=" + PLUGIN,
        "--field-selector=spec.nodeName=" + node,
    )
    items = [item for item in found["items"] if "deletionTimestamp" not in item["metadata"]] if found else []
    return items[0] if items else None


def plugin_log(item: Data) -> str:
    """The last lines of a plugin's pod."""
    name = item["metadata"]["name"]
    return run("logs", "--namespace=" + PLUGIN_NAMESPACE, "--tail={}".format(LINES), name)


def about_node(params: Data) -> List[str]:
    """Conditions and GPUs of a node, and the pods that have them."""
    name, resource = params["node"], params["resource"]
    node = get("node", name)
    if node is None:
        return ["the cluster has no such node"]
    status = node["status"]
    lines = ["{type}={status}: {message}".format(**entry) for entry in status.get("conditions", [])]
    if params["api"] == claims.DRA:
        lines.extend(
            "device {}: {}".format(device["name"], ", ".join(claims.taints(device)) or "not tainted")
            for device in claims.devices(name)
        )
    else:
        lines.extend(
            "{} {}: {}".format(kind, resource, (status.get(kind) or {}).get(resource, "none"))
            for kind in ("capacity", "allocatable")
        )
    lines.extend("{} is allocated to {}".format(resource, holder) for holder in holders(params))
    return lines


def about_plugin(node: str) -> List[str]:
    """State and last output of the plugin on a node."""
    item = plugin_pod(node)
    if item is None:
        return ["no pod with {} is on this node".format(PLUGIN)]
    return ["{}: {}".format(item["metadata"]["name"], why(item)), *plugin_log(item).splitlines()]


def about_events(namespace: Namespace) -> List[str]:
    """The events of the checks' namespace, the newest last."""
    events = sorted(
        namespace.events(), key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or ""
    )
    return [
        "{} {} {}: {}".format(
            event.get("type"), event.get("reason"), event["involvedObject"].get("name"), event.get("message")
        )
        for event in events[-LINES:]
    ]


def about_pods(namespace: Namespace) -> List[str]:
    """States of the checks' pods."""
    pods = get("pods", "--namespace=" + namespace.name) or {"items": []}
    return ["{}: {}".format(item["metadata"]["name"], why(item)) for item in pods["items"]]


def about_output(namespace: Namespace) -> List[str]:
    """The last lines of output of the checks' pods."""
    pods = get("pods", "--namespace=" + namespace.name) or {"items": []}
    lines: List[str] = []
    for item in pods["items"]:
        name = item["metadata"]["name"]
        if any(entry.get("containerID") for entry in item["status"].get("containerStatuses", [])):
            log = run("logs", name, "--namespace=" + namespace.name, "--tail={}".format(LINES))
            lines.extend("{}: {}".format(name, line) for line in log.splitlines())
    return lines


def diagnose(namespace: Namespace) -> List[Data]:
    """The complete diagnosis: a source that fails has its error, an empty one is left out."""
    node = namespace.params["node"]
    sources: Tuple[Tuple[str, Callable[[], List[str]]], ...] = (
        ("node {}".format(node), lambda: about_node(namespace.params)),
        ("pods of {}".format(namespace.name), lambda: about_pods(namespace)),
        ("events of {}".format(namespace.name), lambda: about_events(namespace)),
        ("output of the pods", lambda: about_output(namespace)),
        ("device plugin", lambda: about_plugin(node)),
    )
    diagnosis = []
    for source, look in sources:
        try:
            lines = look()
        except (KubectlError, OSError) as error:
            lines = str(error).splitlines()
        if lines:
            diagnosis.append({"source": source, "lines": lines})
    return diagnosis
