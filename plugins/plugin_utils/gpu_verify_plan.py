# SPDX-License-Identifier: Apache-2.0
"""How role gpu_verify verifies a board: its image, its pods and the board's part of the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release, host_kinds

IDENTITY = ("model", "module", "soc", "l4t", "jetpack", "memory_bytes")
# A stage waits for several things, one after the other, each as long as jetson_k3s_timeout.
WAITS = 12
RESTARTED = "restarted"


class Settings(TypedDict):
    """What the inventory says, and what other roles have found."""

    host: str
    node: str
    mode: str
    api: str
    kind: str
    """jetson_k3s_host_kind."""
    container_runtime: str
    timeout: int


class Pods(TypedDict):
    """Parameters of every stage."""

    node: str
    own_image: str
    own_command: list[str]
    api: str
    runtime_class: str | None
    timeout: int


class Plan(TypedDict):
    """What the tasks carry out."""

    archive: str
    """The bundle's file with an image of the owner's deviceQuery, '' for that of the plugin."""
    image: str
    loads: bool
    """Whether that image is loaded on the board."""
    pods: Pods
    stage_timeout: int
    busy: str
    """Why no pod may be started; '' if pods may."""
    board: dict[str, Any]
    simulated: bool
    """Whether it is a virtual board of the lab, by its files or by the bundle."""


def archive_of(jetson: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """The bundle's image for the board's L4T line, else its image for all, else ''."""
    arch = board_release.architecture(jetson["arch"])
    line = (jetson["l4t"] or "").split(".")[0]
    names = (f"device-query-l4t{line}-{arch}.tar.gz", f"device-query-{arch}.tar.gz")
    return next((name for name in names if name in files), "")


def plan(jetson: Mapping[str, Any], bundle: Mapping[str, Any], settings: Settings) -> Plan:
    """How a board is verified. `jetson` are its facts, `bundle` what the module bundle_info has found."""
    with_pods = host_kinds.takes(settings["kind"], "gpu_pods")
    archive = archive_of(jetson, bundle["files"]) if with_pods else ""
    images = bundle["files"].get(archive, {}).get("images") or {}
    image = next(iter(images), "")
    undisturbed, api = settings["mode"] == "undisturbed", settings["api"]
    # Claims use CDI and work with every runtime.
    by_class = settings["container_runtime"] == "containerd" and api != "dra"
    timeout = int(settings["timeout"])
    return {
        "archive": archive,
        "image": image,
        "loads": bool(archive) and not undisturbed,
        "pods": {
            "node": settings["node"],
            "own_image": image,
            "own_command": ["deviceQuery"],
            "api": api,
            "runtime_class": "nvidia" if by_class else None,
            "timeout": timeout,
        },
        "stage_timeout": WAITS * timeout,
        "busy": "mode undisturbed starts no pod"
        if undisturbed
        else ""
        if with_pods
        else "a plain host has no GPU",
        "board": {
            "name": settings["host"],
            "node": settings["node"],
            "kind": settings["kind"],
            **{name: jetson.get(name) for name in IDENTITY},
            # Of nvpmodel, {"id": 2, "name": "MODE_30W"}: the GPU's clock and multiprocessors depend on it.
            "power_mode": jetson.get("power_mode"),
        },
        "simulated": bool(jetson["simulated"] or bundle["versions"].get("simulated")),
    }


def engine_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Docker's description of itself, or why there is none. `answer` is the result of module gpu_board."""
    if "engine" in answer:
        return dict(answer["engine"])
    return {"unasked": answer.get("msg", "no answer")}


def software(answer: Mapping[str, Any], jetson: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Versions on the board, for the report. The first three come from the node's status."""
    engine = engine_of(answer)
    return {
        **dict.fromkeys(("k3s", "container_runtime", "device_plugin")),
        "docker": engine.get("ServerVersion"),
        "container_toolkit": jetson["nvidia_runtime"]["version"],
        "default_runtime": engine.get("DefaultRuntime"),
        **({"device_query": image} if image else {}),
    }


def restart_error(restart: Mapping[str, Any], stage: str) -> str:
    """Why the kubelet has not restarted, for the stage after the restart; '' if it has."""
    if stage != RESTARTED or "status" in restart:
        return ""
    return str(restart.get("msg", "no answer"))


FILTERS = {
    "gpu_verify_engine": engine_of,
    "gpu_verify_plan": plan,
    "gpu_verify_restart_error": restart_error,
    "gpu_verify_software": software,
}
