# SPDX-License-Identifier: Apache-2.0
"""Which node has which GPU, and who has which share: from what was observed to a status and its table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables, host_kinds
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    gpu_device_plugin_configurations as configurations,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    preflight_second_plugin as second_plugin,
)

OURS = "jetson-k3s.github.io"
DRIVER = f"gpu.{OURS}"
ENDED = ("Succeeded", "Failed")
APIS = ("dra", "device-plugin")
COLUMNS = ("NODE", "STATE", "MODULE", "L4T", "JETPACK", "DEVICES")
# Prefix of its resources' names, unless the device plugin is configured with another one.
NVIDIA = "nvidia.com/"
# How names begin that systems of GPU sharing have. A test compares them with those of check-manifest
# (sharing/manifests/pods.py of the plugin).
SHARING = (
    "aliyun.com/gpu",
    "elasticgpu.com/",
    "elasticgpu.io/",
    "koordinator.sh/gpu",
    "metax-tech.com/",
    "nvidia.com/gpucores",
    "nvidia.com/gpumem",
    "nvidia.com/priority",
    "tencent.com/vcuda-",
    "tke.cloud.tencent.com/qgpu-",
)


def kinds_of(
    hosts: Iterable[str], hostvars: board_variables.Hostvars, name: str = host_kinds.NAME
) -> dict[str, str]:
    """{name of the node: kind of its host}, by the inventory, and by the hostnames of hosts that answered."""
    facts = board_variables.facts_of(hosts, hostvars)
    kinds = {host: host_kinds.kind_of(hostvars[host], name) for host in hosts}
    return {
        str(facts[host]["hostname"] if host in facts else host).lower(): kind for host, kind in kinds.items()
    }


def status(observed: dict[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """The status: what k3s_observe returned, put together by node, and the pods that wait for nobody.

    `kinds` has the kind of host of each node of the inventory. Of another node, nothing is known.
    """
    nodes = sorted(observed["nodes"], key=lambda one: one["name"])
    return {
        "nodes": [_node(node, observed, kinds.get(node["name"])) for node in nodes],
        "unseen": _unseen(observed),
        "not_advertised": _not_advertised(observed),
    }


def _unseen(observed: dict[str, Any]) -> list[dict[str, Any]]:
    """Pods that wait for a scheduler that this cluster does not have, and ask for what a node of it has."""
    offered = {name for node in observed["nodes"] for name in node["capacity"]}
    return [
        {
            "namespace": pod["namespace"],
            "pod": pod["name"],
            "scheduler": pod["unseen_by"],
            "resources": sorted(offered & pod["requests"].keys()),
        }
        for pod in observed["pods"]
        if pod["unseen_by"] and offered & pod["requests"].keys()
    ]


def _not_advertised(observed: dict[str, Any]) -> list[dict[str, Any]]:
    """Pending pods that request names of GPU sharing that no node advertises, with these names."""
    offered = {name for node in observed["nodes"] for name, count in node["capacity"].items() if count}
    found = (
        {
            "namespace": pod["namespace"],
            "pod": pod["name"],
            "resources": sorted(
                name for name in pod["requests"] if name.startswith(SHARING) and name not in offered
            ),
        }
        for pod in observed["pods"]
        if pod["phase"] == "Pending" and not pod["node"]
    )
    return [pod for pod in found if pod["resources"]]


def _node(node: dict[str, Any], observed: dict[str, Any], kind: str | None) -> dict[str, Any]:
    labels = node["labels"]
    # Where the DRA driver serves the GPU, its holders are those who have a claim.
    claims, plugin = (configurations.name_of_label(labels.get(f"{OURS}/{api}")) for api in APIS)
    by_claims = claims is not None
    others = [pod for pod in observed["gpu_plugins"] if pod["node"] == node["name"]]
    foreign = bool(others) and not second_plugin.serves(labels)
    has_plugin = not (by_claims or foreign) and kind != host_kinds.PLAIN
    answer = observed["answers"][node["name"]]
    holders, problem = _holders(answer, observed["pods"]) if has_plugin else ([], None)
    return {
        "name": node["name"],
        "kind": kind,
        "ready": node["ready"],
        "device_plugin": plugin is not None,
        "configuration": (claims or plugin) or None,
        **{key: labels.get(f"{OURS}/{key}") for key in ("module", "l4t", "jetpack", "chip")},
        "resources": [
            _resource(name, node, observed["pods"], foreign)
            for name, count in sorted(node["capacity"].items())
            if count
        ],
        "other_plugins": [f"{pod['namespace']}/{pod['name']}" for pod in others],
        "two_plugins": [
            f"{second_plugin.title(pod)} runs here, too. {second_plugin.remedy(pod, node['name'], kind)}"
            for pod in others
            if not foreign
        ],
        "devices": [
            _device(one, observed["claims"])
            for one in observed["devices"]
            if (one["node"], one["driver"]) == (node["name"], DRIVER)
        ],
        "holders": holders,
        "problem": problem,
        # Where another plugin serves, nobody has asked the kubelet.
        "differences": list(_differences(node, holders or [], observed["pods"]))
        if has_plugin and holders is not None
        else [],
    }


def _device(device: dict[str, Any], claims: list[dict[str, Any]]) -> dict[str, Any]:
    """A device of the DRA driver, and the claims that were given it: several, of one that is divided."""
    this = (device["driver"], device["pool"], device["name"])
    return {
        "name": device["name"],
        "sharing": device["attributes"].get("sharing"),
        "capacity": device["capacity"],
        "taints": device["taints"],
        "claims": [
            {key: claim[key] for key in ("namespace", "name", "pods")} | {"consumed": given["consumed"]}
            for claim in claims
            for given in claim["devices"]
            if (given["driver"], given["pool"], given["name"]) == this
        ],
    }


def _resource(name: str, node: dict[str, Any], pods: list[dict[str, Any]], foreign: bool) -> dict[str, Any]:
    """A resource of a node. `foreign`: NVIDIA's plugin offers it, and of its GPUs only that knows more."""
    capacity = node["capacity"][name]
    used = sum(
        pod["requests"].get(name, 0)
        for pod in pods
        if pod["node"] == node["name"] and pod["phase"] not in ENDED
    )
    # A Jetson has one GPU: more than one is the same one, shared.
    of_board = name.startswith(NVIDIA) and not foreign
    sharing = ("time-slicing" if capacity > 1 else "exclusive") if of_board else None
    allocatable = node["allocatable"].get(name, 0)
    return {
        "name": name,
        "capacity": capacity,
        "allocatable": allocatable,
        "used": used,
        "free": allocatable - used,
        "sharing": sharing,
    }


def _differences(
    node: dict[str, Any], holders: list[dict[str, Any]], pods: list[dict[str, Any]]
) -> Iterator[str]:
    """Differences between the kubelet's allocations and the pods' requests."""
    here = [pod for pod in pods if pod["node"] == node["name"] and pod["phase"] not in ENDED]
    for name in sorted(node["capacity"]):
        known = sum(pod["allocated"].get(name, 0) for pod in here)
        given = sum(
            one["count"]
            for holder in holders
            for one in holder["held"]
            if one["resource"] == name and holder["phase"] not in ENDED
        )
        if given != known:
            yield f"its kubelet has allocated {given} of {name}, and its pods request {known}"


def _holders(
    answer: dict[str, str], pods: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]] | None, str | None]:
    """Holders with their pods' phases, and None; or None, and why they are not known."""
    if "problem" in answer:
        return None, answer["problem"]
    try:
        holders = json.loads(answer["stdout"])["containers"]
    except (ValueError, KeyError, TypeError):
        return None, f"the device plugin there said something else: {answer['stdout'][:200]!r}"
    phases = {(pod["namespace"], pod["name"]): pod["phase"] for pod in pods}
    return [one | {"phase": phases.get((one["namespace"], one["pod"]), "gone")} for one in holders], None


def table(found: dict[str, Any]) -> str:
    """The status for people: a line per node and per container with devices, and the problems."""
    rows = [COLUMNS, *(_row(node) for node in found["nodes"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines = [text[0]]
    for node, line in zip(found["nodes"], text[1:], strict=True):
        lines.append(line)
        for holder in node["holders"] or ():
            lines += [f"  {_held(holder)}", *(f"    {text}" for text in _unused(holder, node))]
        lines += [f"  {text}" for device in node["devices"] for text in _device_lines(device)]
        lines += [f"  two device plugins: {text}" for text in node["two_plugins"]]
        if node["problem"]:
            lines.append(f"  allocations are unknown: {node['problem']}")
        lines += [f"  {text}: run this again, a pod may just start or end" for text in node["differences"]]
    lines += [_waits(pod) for pod in found["unseen"]]
    lines += [_requests(pod) for pod in found["not_advertised"]]
    return "\n".join(lines)


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    words = [_devices(resource) for resource in node["resources"]]
    if node["devices"]:
        claimed = sum(bool(device["claims"]) for device in node["devices"])
        words.append(f"{DRIVER}: {claimed} of {len(node['devices'])} claimed")
    devices = ", ".join(words) or ("none, plain host" if node["kind"] == host_kinds.PLAIN else "none")
    if node["other_plugins"] and not node["two_plugins"]:
        devices += f", by {', '.join(node['other_plugins'])}"
    if node["configuration"]:
        devices += f" (configuration {node['configuration']})"
    state = "Ready" if node["ready"] else "NotReady"
    return (node["name"], state, *(node[key] or "-" for key in ("module", "l4t", "jetpack")), devices)


def _devices(resource: dict[str, Any]) -> str:
    text = f"{resource['name']}: {resource['used']} of {resource['capacity']} used"
    if resource["sharing"] == "time-slicing":
        text += ", one GPU shared"
    if resource["allocatable"] < resource["capacity"]:
        text += f", only {resource['allocatable']} allocatable"
    return text


def _device_lines(device: dict[str, Any]) -> Iterator[str]:
    for taint in device["taints"]:
        yield f"{device['name']} is given to nobody: {taint}"
    for claim in device["claims"]:
        consumed = "".join(f", {name} {size}" for name, size in sorted(claim["consumed"].items()))
        pods = ", ".join(claim["pods"]) or "no pod"
        yield f"{claim['namespace']}/{claim['name']} claims {device['name']}{consumed}: {pods}"


def _held(holder: dict[str, Any]) -> str:
    words = [f"{one['count']} {one['resource']}" for one in holder["held"]]
    figures = (
        ("weight {} %", "percent"),
        ("limit {} MiB", "memory_limit_mib"),
        ("used {} MiB", "memory_used_mib"),
        ("resident {} MiB", "memory_resident_mib"),
    )
    words += [text.format(holder[key]) for text, key in figures if holder[key] is not None]
    phase = "" if holder["phase"] == "Running" else f" ({holder['phase']})"
    return f"{holder['namespace']}/{holder['pod']} container {holder['container']}: {', '.join(words)}{phase}"


def _unused(holder: dict[str, Any], node: dict[str, Any]) -> Iterator[str]:
    """The line of a container that does not use the GPU. A plugin of the last release does not know that."""
    if holder.get("unused_since"):
        l4t = f"L4T {node['l4t']}" if node["l4t"] else "the board's L4T"
        pod = f"{holder['namespace']}/{holder['pod']} on {node['name']}"
        since = f"{holder['unused_since']} ({holder['unused_seconds']} s)"
        yield (
            f"{pod} has the GPU and has not used it since {since}. Probable cause: the CUDA of its image "
            f"does not fit {l4t}, and the program runs on the CPU. Compare the image with the board: "
            f"./jetson-k3s check-image IMAGE {node['name']}. Other causes: docs/unused-gpu.md"
        )


def _requests(pod: dict[str, Any]) -> str:
    return (
        f"{pod['namespace']}/{pod['pod']} requests {', '.join(pod['resources'])}, which no node advertises: "
        "check its manifest: ./jetson-k3s check-manifest FILE (docs/other-systems.md)"
    )


def _waits(pod: dict[str, Any]) -> str:
    return (
        f"{pod['namespace']}/{pod['pod']} waits for {pod['scheduler']}, and no scheduler of that name has "
        f"processed it: remove schedulerName, the default scheduler counts {', '.join(pod['resources'])}"
    )


FILTERS = {"gpu_status": status, "gpu_status_kinds": kinds_of, "gpu_status_table": table}
