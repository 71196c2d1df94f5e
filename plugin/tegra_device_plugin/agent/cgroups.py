# SPDX-License-Identifier: Apache-2.0
"""The pod of a process, by the names that the kubelet and the runtimes give to control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tegra_device_plugin.system.hosttree import HostTree, raise_own_shortage

# Drivers and runtimes in turn (kubelet's pkg/kubelet/cm, cri-dockerd, containerd's cri):
#   cgroupfs            /kubepods/burstable/podUID/ID            of Docker and containerd
#   systemd             /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/
#                       docker-ID.scope   or cri-containerd-ID.scope
#   neither, containerd whose runc does not use systemd
#                       /system.slice/containerd.service/kubepods-podU_I_D.slice:cri-containerd:ID
# A static pod's uid is a digest without dashes. Within a control group namespace of one's own, the path of
# another pod begins with /../ and has lost the groups above that both have.
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_QOS = r"(?:burstable|besteffort)"
_ABOVE = rf"(?:/kubepods(?:\.slice)?)?(?:/(?:kubepods-)?{_QOS}(?:\.slice)?)?"
_CONTAINER = re.compile(
    rf"(?:{_ABOVE}|/system\.slice/(?:containerd|k3s|k3s-agent)\.service)"
    rf"/(?:kubepods-(?:{_QOS}-)?)?pod(?P<uid>{_UID})(?:\.slice)?"
    r"[/:](?:[a-z-]+[-:])?(?P<id>[0-9a-f]{64})(?:\.scope|/|$)"
)
_UPWARDS = re.compile(r"(?:/\.\.)+")
_MOST_BYTES = 16_384  # 13 lines in version 1


@dataclass(frozen=True)
class Member:
    """The pod and container that a process is in."""

    uid: str
    container: str


def member(text: str, own: str) -> Member | None:
    """Read a `/proc/PID/cgroup` of either version; None for a process that is in no pod.

    `own` is that of this process. The kubelet's groups are in the root group or in one above this process,
    also where the kubelet is in a container. Elsewhere a name tells nothing: a user can make groups
    with any name below a group that systemd has delegated, and a container below its own.
    """
    own_paths = [f"{path}/" for path in _paths(own)]
    for path in _paths(text):
        found = _CONTAINER.search(path)
        if found is None:
            continue
        above = path[: found.start()]
        if not above or _UPWARDS.fullmatch(above) or any(one.startswith(f"{above}/") for one in own_paths):
            return Member(found["uid"].replace("_", "-"), found["id"])
    return None


def _paths(text: str) -> list[str]:
    return [line.split(":", 2)[-1] for line in text.splitlines()]


def members(host: HostTree, pids: Iterable[int]) -> dict[int, Member]:
    """Read the same of processes of the host; those that are in no pod or have ended are left out.

    Raises OSError for a shortage of descriptors or memory (hosttree.is_own_shortage).
    """
    own = Path("/proc/self/cgroup").read_text(errors="replace")
    found = {}
    for pid in pids:
        try:
            text = host.read(f"/proc/{pid}/cgroup", _MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise_own_shortage(error)
            continue
        if its := member(text, own):
            found[pid] = its
    return found


def has_host_pids(host: HostTree) -> bool:
    """Give whether this process has the host's process ids; true also where the host's /proc is not seen."""
    return host.target("/proc/self") in (None, str(os.getpid()))
