# SPDX-License-Identifier: Apache-2.0
"""Which node has which GPU and who holds it: from what was observed to a status, and to a table of it."""

from __future__ import annotations

import json
from typing import Any

OURS = "jetson-k3s.github.io"
ENDED = ("Succeeded", "Failed")
COLUMNS = ("NODE", "STATE", "MODULE", "L4T", "JETPACK", "DEVICES")
# Its resources' names begin so, unless the device plugin was told another one.
NVIDIA = "nvidia.com/"


def status(observed: dict[str, Any]) -> dict[str, Any]:
    """The status: what k3s_observe returned, put together by node."""
    return {
        "nodes": [_node(node, observed) for node in sorted(observed["nodes"], key=lambda one: one["name"])]
    }


def _node(node: dict[str, Any], observed: dict[str, Any]) -> dict[str, Any]:
    labels = node["labels"]
    holders, problem = _holders(observed["answers"][node["name"]], observed["pods"])
    return {
        "name": node["name"],
        "ready": node["ready"],
        **{key: labels.get(f"{OURS}/{key}") for key in ("module", "l4t", "jetpack", "chip")},
        "resources": [
            _resource(name, node, observed["pods"])
            for name, count in sorted(node["capacity"].items())
            if count
        ],
        "holders": holders,
        "problem": problem,
    }


def _resource(name: str, node: dict[str, Any], pods: list[dict[str, Any]]) -> dict[str, Any]:
    capacity = node["capacity"][name]
    used = sum(
        pod["requests"].get(name, 0)
        for pod in pods
        if pod["node"] == node["name"] and pod["phase"] not in ENDED
    )
    # A Jetson has one GPU: more than one is the same one, shared.
    sharing = ("time-slicing" if capacity > 1 else "exclusive") if name.startswith(NVIDIA) else None
    allocatable = node["allocatable"].get(name, 0)
    return {"name": name, "capacity": capacity, "allocatable": allocatable, "used": used, "sharing": sharing}


def _holders(
    answer: dict[str, str], pods: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]] | None, str | None]:
    """Holders with their pods' phases, and None; or None, and why they are not known."""
    if "problem" in answer:
        return None, answer["problem"]
    try:
        holders = json.loads(answer["stdout"])["holders"]
    except (ValueError, KeyError, TypeError):
        return None, f"the device plugin there said something else: {answer['stdout'][:200]!r}"
    phases = {(pod["namespace"], pod["name"]): pod["phase"] for pod in pods}
    return [one | {"phase": phases.get((one["namespace"], one["pod"]), "gone")} for one in holders], None


def table(found: dict[str, Any]) -> str:
    """The status for people: a line per node, a line per device that is held, and what is not known."""
    rows = [COLUMNS, *(_row(node) for node in found["nodes"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines = [text[0]]
    for node, line in zip(found["nodes"], text[1:], strict=True):
        lines.append(line)
        lines += [f"  {_held(holder)}" for holder in node["holders"] or ()]
        if node["problem"]:
            lines.append(f"  who holds what is not known: {node['problem']}")
    return "\n".join(lines)


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    devices = ", ".join(_devices(resource) for resource in node["resources"]) or "none"
    state = "Ready" if node["ready"] else "NotReady"
    return (node["name"], state, *(node[key] or "-" for key in ("module", "l4t", "jetpack")), devices)


def _devices(resource: dict[str, Any]) -> str:
    text = f"{resource['name']}: {resource['used']} of {resource['capacity']} used"
    if resource["sharing"] == "time-slicing":
        text += ", one GPU shared"
    if resource["allocatable"] < resource["capacity"]:
        text += f", only {resource['allocatable']} allocatable"
    return text


def _held(holder: dict[str, Any]) -> str:
    phase = "" if holder["phase"] == "Running" else f" ({holder['phase']})"
    # Plugins of before say one device a line, and no number.
    count, limit = holder.get("count", 1), holder.get("memory_limit_mib")
    devices = holder["device"] if count == 1 else f"{count} devices"
    memory = f", {limit} MiB" if limit else ""
    return (
        f"{holder['resource']} {devices}{memory}: "
        f"{holder['namespace']}/{holder['pod']} container {holder['container']}{phase}"
    )


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Any]:
        """The filters, prefixed by the role's name."""
        return {"gpu_status": status, "gpu_status_table": table}
