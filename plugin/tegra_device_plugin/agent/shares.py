# SPDX-License-Identifier: Apache-2.0
"""Which share of the GPU each pod of the node was given, as the kubelet tells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tegra_device_plugin.kubelet.pod_resources import Holder
from tegra_device_plugin.system.hosttree import HostTree

# The kubelet makes a directory NAMESPACE_NAME_UID here for every pod (kuberuntime, BuildPodLogsDirectory);
# neither of the first two can have a `_`. PodResources has names only, a process' control group only the uid.
POD_LOGS = "/var/log/pods"
# And a link NAME_NAMESPACE_CONTAINER-ID.log for every container (legacyLogSymlink), 255 characters at most.
CONTAINER_LOGS = "/var/log/containers"
_CONTAINER_LOG = re.compile(r"[^_]+_[^_]+_(?P<name>[^_]+)-(?P<id>[0-9a-f]{64})\.log")


@dataclass(frozen=True)
class Units:
    """The resources that GPU time and GPU memory are sold as."""

    core: str
    """One id is one percent."""
    memory: str
    memory_bytes: Callable[[int], int]
    """What so many ids stand for."""


@dataclass(frozen=True, order=True)
class PodName:
    """A pod as people call it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Share:
    """What a pod was given; 0 is what it did not ask for, which is no limit."""

    percent: int = 0
    memory_bytes: int = 0


def shares(holders: Iterable[Holder], units: Units) -> dict[PodName, Share]:
    """Add up what the containers of each pod hold; a pod that holds neither is left out."""
    held: Counter[tuple[PodName, str]] = Counter()
    for one in holders:
        held[PodName(one.namespace, one.pod), one.resource] += one.count
    pods = {pod for pod, resource in held if resource in (units.core, units.memory)}
    return {
        pod: Share(held[pod, units.core], units.memory_bytes(held[pod, units.memory])) for pod in sorted(pods)
    }


def pod_names(host: HostTree) -> Mapping[str, PodName]:
    """Pods of the node by uid, also those that have ended a short while ago."""
    parts = (entry.split("_") for entry in host.names(POD_LOGS))
    return {part[2]: PodName(part[0], part[1]) for part in parts if len(part) == 3}  # noqa: PLR2004 - see POD_LOGS


def container_names(host: HostTree) -> Mapping[str, str]:
    """Names of the node's containers by id; one is missing if the link's name would be too long for it."""
    links = map(_CONTAINER_LOG.fullmatch, host.names(CONTAINER_LOGS))
    return {link["id"]: link["name"] for link in links if link}
