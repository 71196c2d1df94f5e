# SPDX-License-Identifier: Apache-2.0
"""The node's pods: their names by uid, their shares of the GPU, and the pods of processes."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.kubelet import pod_resources
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.system.hosttree import HostTree, raise_own_shortage
from tegra_device_plugin.system.log import ProblemLog, describe_error
from tegra_device_plugin.system.waiting import BlockingCalls

# A pod's devices never change while it runs. A pod without a process on the GPU is found this often.
REFRESH_SECONDS = 30.0
READ_DEADLINE_SECONDS = 3.0

# The kubelet makes a directory NAMESPACE_NAME_UID here for every pod (kuberuntime, BuildPodLogsDirectory);
# neither of the first two can have a `_`. PodResources has names only, a process' control group only the uid.
POD_LOGS = "/var/log/pods"
# And a link NAME_NAMESPACE_CONTAINER-ID.log for every container (legacyLogSymlink), 255 characters at most.
CONTAINER_LOGS = "/var/log/containers"
_CONTAINER_LOG = re.compile(r"[^_]+_[^_]+_(?P<name>[^_]+)-(?P<id>[0-9a-f]{64})\.log")


@dataclass(frozen=True)
class UnitResources:
    """The resources that GPU time and GPU memory are allocated by; names are empty where there are none."""

    core: str = ""
    """One id is one percent."""
    memory: str = ""
    memory_bytes: Callable[[int], int] = lambda _ids: 0
    """The bytes of a number of ids."""


@dataclass(frozen=True, order=True)
class PodName:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Share:
    """The allocation of a pod; 0 where the pod did not request the resource, which is no limit."""

    percent: int = 0
    memory_bytes: int = 0


class Pods:
    """Names by uid, shares by name and allocations, by the kubelet's last answer.

    A newer pod has no share or limit.
    """

    def __init__(self, socket: Path, host: HostTree, units: UnitResources) -> None:
        self.names: Mapping[str, PodName] = {}
        self.shares: Mapping[PodName, Share] = {}
        self.allocations: Sequence[ContainerAllocation] = ()
        self._socket = socket
        self._host = host
        self._units = units
        self._known: set[str] = set()
        self._refreshed_at: float | None = None
        self._lock = asyncio.Lock()
        self._blocking = BlockingCalls(READ_DEADLINE_SECONDS)
        self._problem_log = ProblemLog()

    def share(self, uid: str) -> Share:
        """Give a pod's share, an empty one for an unknown pod."""
        name = self.names.get(uid)
        return self.shares.get(name, Share()) if name else Share()

    async def refresh(self, uids: Collection[str]) -> None:
        """Query the kubelet if one of the pods `uids` is new, or its last answer is old.

        While the kubelet does not answer, names and shares stay: the devices of a running pod do not change.
        """
        async with self._lock:
            now = asyncio.get_running_loop().time()
            fresh = self._refreshed_at is not None and now - self._refreshed_at < REFRESH_SECONDS
            if fresh and self._known.issuperset(uids):
                return
            try:
                # Before the query, so that the answer is newer: a new pod can have the name of an old pod.
                names = await self._blocking.run(lambda: pod_names(self._host))
                found = pod_resources.found(await pod_resources.list_allocations(self._socket))
            except (OSError, TimeoutError) as error:
                reason = describe_error(error, f"reading {POD_LOGS} hangs")
                self._problem_log.warn(f"the pods' shares are not known: {reason}")
                return
            self._problem_log.resolved("the pods' shares are known again")
            self.names, self.shares, self.allocations = names, shares(found, self._units), found
            self._known = {*names, *uids}
            self._refreshed_at = now


def shares(allocations: Iterable[ContainerAllocation], units: UnitResources) -> dict[PodName, Share]:
    """Add up the allocations of each pod's containers; a pod without units is left out."""
    counts: Counter[tuple[PodName, str]] = Counter()
    for one in allocations:
        counts[PodName(one.namespace, one.pod), one.resource] += one.count
    pods = {pod for pod, resource in counts if resource in (units.core, units.memory)}
    return {
        pod: Share(counts[pod, units.core], units.memory_bytes(counts[pod, units.memory]))
        for pod in sorted(pods)
    }


def pod_names(host: HostTree) -> Mapping[str, PodName]:
    """Give the node's pods by uid, including pods that ended recently."""
    parts = (entry.split("_") for entry in host.names(POD_LOGS))
    return {part[2]: PodName(part[0], part[1]) for part in parts if len(part) == 3}  # noqa: PLR2004 - see POD_LOGS


def container_names(host: HostTree) -> Mapping[str, str]:
    """Give names of the node's containers by id, except containers whose link's name would be too long."""
    links = map(_CONTAINER_LOG.fullmatch, host.names(CONTAINER_LOGS))
    return {link["id"]: link["name"] for link in links if link}


# Drivers and runtimes in turn (kubelet's pkg/kubelet/cm, cri-dockerd, containerd's cri):
#   cgroupfs            /kubepods/burstable/podUID/ID            of Docker and containerd
#   systemd             /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/
#                       docker-ID.scope   or cri-containerd-ID.scope
#   neither, containerd whose runc does not use systemd
#                       /system.slice/containerd.service/kubepods-podU_I_D.slice:cri-containerd:ID
# A static pod's uid is a digest without dashes. Within an own control group namespace, the path of another
# pod starts with /../ instead of the groups that both have.
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_QOS = r"(?:burstable|besteffort)"
_PARENT_GROUPS = rf"(?:/kubepods(?:\.slice)?)?(?:/(?:kubepods-)?{_QOS}(?:\.slice)?)?"
_CONTAINER = re.compile(
    rf"(?:{_PARENT_GROUPS}|/system\.slice/(?:containerd|k3s|k3s-agent)\.service)"
    rf"/(?:kubepods-(?:{_QOS}-)?)?pod(?P<uid>{_UID})(?:\.slice)?"
    r"[/:](?:[a-z-]+[-:])?(?P<id>[0-9a-f]{64})(?:\.scope|/|$)"
)
_UPWARDS = re.compile(r"(?:/\.\.)+")
_MAX_BYTES = 16_384  # 13 lines in version 1


@dataclass(frozen=True)
class Member:
    uid: str
    container: str


def member(text: str, own: str) -> Member | None:
    """Read a `/proc/PID/cgroup` of either version; None for a process without a pod.

    `own` is the file of this process. The kubelet's groups are in the root group or in a group above this
    process, also if the kubelet is in a container. Elsewhere a name proves nothing: users can make groups of
    any name below a group that systemd has delegated, and containers below their own group.
    """
    own_paths = [f"{path}/" for path in _paths(own)]
    for path in _paths(text):
        found = _CONTAINER.search(path)
        if found is None:
            continue
        parent = path[: found.start()]
        if not parent or _UPWARDS.fullmatch(parent) or any(one.startswith(f"{parent}/") for one in own_paths):
            return Member(found["uid"].replace("_", "-"), found["id"])
    return None


def _paths(text: str) -> list[str]:
    return [line.split(":", 2)[-1] for line in text.splitlines()]


def members(host: HostTree, pids: Iterable[int]) -> dict[int, Member]:
    """Read the members of processes of the host; processes without a pod and ended ones are left out.

    Raises OSError for a shortage of descriptors or memory (hosttree.is_own_shortage).
    """
    own = Path("/proc/self/cgroup").read_text(errors="replace")
    found = {}
    for pid in pids:
        try:
            text = host.read(f"/proc/{pid}/cgroup", _MAX_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise_own_shortage(error)
            continue
        if parsed := member(text, own):
            found[pid] = parsed
    return found


def has_host_pids(host: HostTree) -> bool:
    """True if this process has the host's process ids, or the host's /proc is not visible."""
    return host.target("/proc/self") in (None, str(os.getpid()))
