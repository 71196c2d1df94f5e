# SPDX-License-Identifier: Apache-2.0
"""GPU memory by process and by container, from whoever knows it on this board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tegra_device_plugin.agent import nvmap, nvml
from tegra_device_plugin.agent.cgroups import Member, member_of
from tegra_device_plugin.agent.shares import container_names, pod_names
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.system.hosttree import HostTree

_NVML_DRIVER = "nvidia"  # Thor's; every other Jetson has nvgpu, whose memory nvmap hands out


class UnknownUseError(OSError):
    """Nobody on this board tells how much memory each process holds; the text says why."""


class MemoryUse:
    """Asks nvmap, or NVML on a Thor."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._host = HostTree(root)
        self._driver: str | None = None
        self._nvml: nvml.Nvml | None = None

    def held(self) -> dict[int, int]:
        """Bytes by host pid. Raises UnknownUseError."""
        self._driver = self._driver or detect(self._root).gpu.driver
        if self._driver is None:
            raise UnknownUseError("no Tegra GPU here (see `tegra-device-plugin detect`)")
        return self._by_nvml() if self._driver == _NVML_DRIVER else self._by_nvmap()

    def _by_nvmap(self) -> dict[int, int]:
        try:
            text = self._host.read(nvmap.CLIENTS, nvmap.MOST_BYTES)
        except OSError as error:
            raise UnknownUseError(
                f"cannot read {nvmap.CLIENTS}: {error.strerror}: debugfs must be mounted, and seen from here"
            ) from error
        return nvmap.parse(text.decode("latin-1"))

    def _by_nvml(self) -> dict[int, int]:
        try:
            if self._nvml is None:
                on_host = (f"{str(self._root).rstrip('/')}{path}" for path in nvml.HOST_LIBRARIES)
                self._nvml = nvml.Nvml((nvml.SONAME, *on_host))
            return self._nvml.held()
        except nvml.NvmlError as error:
            raise UnknownUseError(f"on this board only NVML knows who holds GPU memory: {error}") from error


def measure(memory: MemoryUse, host: HostTree) -> tuple[dict[int, int], dict[int, Member]]:
    """Give the bytes by pid, and those pids that are in a pod. Raises UnknownUseError."""
    held = memory.held()
    found = {pid: member_of(host, pid) for pid in held if pid}
    return held, {pid: member for pid, member in found.items() if member}


def in_containers(
    held: Mapping[int, int], members: Mapping[int, Member], names: Mapping[str, str]
) -> Counter[tuple[str, str]]:
    """Give bytes by pod uid and container; `names` has containers by id, and who is not in it has no name."""
    found: Counter[tuple[str, str]] = Counter()
    for pid, member in members.items():
        found[member.uid, names.get(member.container, "")] += held[pid]
    return found


def by_container(root: Path) -> dict[tuple[str, str, str], int]:
    """Look once at the host below `root`: bytes by namespace, pod and container. Raises UnknownUseError."""
    host = HostTree(root)
    if host.text("/proc/1/cgroup") is None:
        raise UnknownUseError(f"the host's processes are not seen in {root}: ask in the node agent's pod")
    used = in_containers(*measure(MemoryUse(root), host), container_names(host))
    pods = pod_names(host)
    return {
        (pod.namespace, pod.name, container): held
        for (uid, container), held in used.items()
        if (pod := pods.get(uid))
    }
