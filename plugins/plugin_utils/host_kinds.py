# SPDX-License-Identifier: Apache-2.0
"""The kinds of hosts in a cluster, and the steps of the playbooks that each of them takes.

A board is a Jetson. A plain host is another Linux computer: a K3s server or agent without a GPU of ours.
The inventory says which (jetson_k3s_host_kind). The host's own answers only confirm it (role preflight).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_variables

BOARD, PLAIN = KINDS = ("board", "plain")
DOCKER, CONTAINERD = RUNTIMES = ("docker", "containerd")
BOARDS = frozenset((BOARD, runtime) for runtime in RUNTIMES)

# Which hosts take a step, by kind and by what runs the pods there. Every step that is not listed is for all
# hosts: the registry of the site, K3s with its certificates and tokens, backup, upgrade, reboot, drift,
# status, reset.
STEPS = {
    # On a board with NVIDIA's runtime.
    "docker": frozenset({(BOARD, DOCKER), (PLAIN, DOCKER)}),
    "nvidia_runtime": frozenset({(BOARD, CONTAINERD)}),
    # The plugin's image and DaemonSet, the labels of the node, jtop.
    "gpu_device_plugin": BOARDS,
    # Pods of the verification. Of a plain host, only the node is verified.
    "gpu_pods": BOARDS,
    "power_mode": BOARDS,
}


# The name is an argument, because `tools.docs.settings` finds the settings of a role in its YAML.
NAME = "jetson_k3s_host_kind"


def kind_of(variables: Mapping[str, Any], name: str = NAME) -> str:
    """The kind of a host, by its variables. Role preflight refuses another word than those of KINDS."""
    return str(variables[name]) if name in variables else BOARD


def takes(kind: str, step: str, runtime: str = DOCKER) -> bool:
    """Does such a host take the step? `runtime` runs its pods, for a step that depends on it."""
    return (kind, runtime) in STEPS[step]


def boards_of(hosts: Iterable[str], hostvars: board_variables.Hostvars, name: str = NAME) -> list[str]:
    """Those of the hosts that are boards."""
    return [host for host in hosts if kind_of(hostvars[host], name) != PLAIN]


def unknown(hosts: Iterable[str], hostvars: board_variables.Hostvars) -> dict[str, str]:
    """{host: its kind} of the hosts whose kind is no word of KINDS."""
    kinds = {host: kind_of(hostvars[host]) for host in hosts}
    return {host: kind for host, kind in kinds.items() if kind not in KINDS}


FILTERS = {"host_boards": boards_of, "host_takes": takes}
