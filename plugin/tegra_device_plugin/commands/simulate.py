# SPDX-License-Identifier: Apache-2.0
"""`simulate`: let a node of a cluster without boards advertise a GPU that it does not have.

Kubernetes lets users with the right permission advertise extended resources in a node's status (its
documentation: "Advertise Extended Resources for a Node"). The scheduler counts the resources; containers get
no GPU for them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from tegra_device_plugin.commands.common import EXIT_OK, Command, add_config, config_file, counted, say
from tegra_device_plugin.config.settings import ConfigError, read_file

ANNOTATION = "jetson-k3s.github.io/simulated-resources"
"""The resources that are simulated on the node, separated by commas."""

# Labels of the pods of device plugins: deploy/base; NVIDIA's Helm chart; NVIDIA's plain manifest.
_PLUGINS = (
    ("app.kubernetes.io/name", "tegra-device-plugin"),
    ("app.kubernetes.io/name", "nvidia-device-plugin"),
    ("name", "nvidia-device-plugin-ds"),
)
_TRIES = 5
"""The kubelet also writes the node's status. A write after another write is rejected, and is tried again."""
_SECONDS = 30
"""kubectl's timeout for a request."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="the node's name, as kubectl has it")
    add_config(parser, "settings of `run`: what to advertise (default: 1 nvidia.com/gpu); CONFIG_FILE")
    parser.add_argument("--remove", action="store_true", help="remove the node's simulated resources")


def _main(options: argparse.Namespace) -> int:
    if options.remove:
        names = withdraw(options.node)
        say(f"{options.node}: removed: {', '.join(names) or 'nothing, because nothing is simulated there'}")
        return EXIT_OK
    content = read_file(config_file(options))
    if content.dra:
        raise ConfigError("sharing.dra: a ResourceSlice cannot be simulated, only extended resources")
    advertise(options.node, content.counts)
    say(f"{options.node}: simulated: {counted(content.counts)}; no container gets a GPU for them")
    return EXIT_OK


class SimulationError(OSError):
    """The node was not changed; the text has the reason."""


def advertise(node: str, resources: Mapping[str, int]) -> None:
    """Advertise `resources` on `node`, instead of its earlier simulated resources.

    Raises SimulationError beside a real device plugin, and where kubectl fails.
    """
    for pod in _plugin_pods(node):
        raise SimulationError(f"node {node} has a real device plugin, pod {pod}: no simulation beside it")

    def change(status: dict[str, Any], simulated: set[str]) -> set[str]:
        _drop(status, simulated - resources.keys())
        for name, count in resources.items():
            there = status.get("capacity", {}).get(name, "0")
            if name not in simulated and there != "0":
                raise SimulationError(
                    f"node {node} has {there} {name} already, which are not simulated: nothing is changed; "
                    "choose another node, or another resource in the settings"
                )
            for kind in ("capacity", "allocatable"):
                status.setdefault(kind, {})[name] = str(count)
        return set(resources)

    _update(node, change)


def withdraw(node: str) -> list[str]:
    """Remove the simulated resources of `node`, and give their names. Raises SimulationError."""
    withdrawn: set[str] = set()

    def change(status: dict[str, Any], simulated: set[str]) -> set[str]:
        withdrawn.update(simulated)
        _drop(status, simulated)
        return set()

    _update(node, change)
    return sorted(withdrawn)


def _drop(status: dict[str, Any], names: set[str]) -> None:
    for kind in ("capacity", "allocatable"):
        for name in names:
            status.get(kind, {}).pop(name, None)


def _update(node: str, change: Callable[[dict[str, Any], set[str]], set[str]]) -> None:
    """Write the node's status and its annotation in one step, or raise SimulationError."""
    path = f"/api/v1/nodes/{quote(node, safe='')}"
    for _ in range(_TRIES):
        found = json.loads(_kubectl("get", "--raw", path))
        annotations = found["metadata"].setdefault("annotations", {})
        simulated = set(filter(None, annotations.pop(ANNOTATION, "").split(",")))
        if now := change(found["status"], simulated):
            annotations[ANNOTATION] = ",".join(sorted(now))
        try:
            _kubectl("replace", "--raw", f"{path}/status", "--filename=-", text=json.dumps(found))
        except _ConflictError:
            continue
        return
    raise SimulationError(f"node {node}: other clients changed its status {_TRIES} times; try again")


def _plugin_pods(node: str) -> Iterator[str]:
    path = f"/api/v1/pods?fieldSelector={quote(f'spec.nodeName={node}')}"
    for pod in json.loads(_kubectl("get", "--raw", path))["items"]:
        labels = pod["metadata"].get("labels", {})
        if any(labels.get(key) == value for key, value in _PLUGINS):
            yield f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


class _ConflictError(SimulationError):
    """Another client has written first."""


def _kubectl(*arguments: str, text: str | None = None) -> str:
    try:
        done = subprocess.run(
            ["kubectl", f"--request-timeout={_SECONDS}s", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise SimulationError("kubectl is needed to simulate, and is not on the PATH") from error
    if done.returncode:
        said = done.stderr.strip() or f"it ended with status {done.returncode}"
        raise (_ConflictError if "(Conflict)" in said else SimulationError)(f"kubectl: {said}")
    return done.stdout


COMMANDS = {
    "simulate": Command(
        _add_arguments,
        _main,
        "For trying manifests: the scheduler counts the simulated resources, and containers get nothing "
        "for them. It uses kubectl and its current context, and is rejected beside a real device plugin. A "
        "kubelet that restarts removes them. Pods that need a GPU are placed on NODE and start without "
        "one; nothing else changes there.",
    )
}
