# SPDX-License-Identifier: Apache-2.0
"""GPU memory by process and container: from nvmap, or from NVML on a Thor, whose driver bypasses nvmap."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tegra_device_plugin.agent.pods import Member, container_names, has_host_pids, members, pod_names
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.system.hosttree import HostTree, raise_own_shortage

_NVML_DRIVER = "nvidia"  # Thor's; every other Jetson has nvgpu, whose memory nvmap allocates

# A row of this debugfs file is the client, the process' name, its host pid and the size in columns of 18, 18,
# 8 and 11 characters (nvmap_dev.c from L4T R32 to R36, client_stringify):
#     user                         gpu_burn     7979   23525644K
# A process can have several rows. A buffer's size is divided by the number of processes that share it; in
# early 4.9 trees it counts in full for each of them.
_CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"
_CLIENTS_BYTES = 1 << 20  # 17,000 rows
# By width, not by white space: a process chooses its name of up to 15 bytes. By a line break in its name, it
# could otherwise forge a row of another process, or hide its own.
_ROW = re.compile(
    r"^[^\n]{18,}? (?s:.{18}) (?P<pid>[ 0-9]{7}[0-9]) (?P<size>[ 0-9]{9}[0-9])(?P<unit>[KMG])$", re.MULTILINE
)
_UNITS = {"K": 10, "M": 20, "G": 30}
# Early 4.9 trees sum bytes in a signed 32-bit number (iovm_commit) and print its kilobytes as unsigned
# (`%10uK`): from 2 GiB on they have 2^32 too many and 2^22 (4 GiB) too few. No board has 4 TiB, so such a
# number is such a sum.
_WRAPPED_KIB = range((1 << 32) - (1 << 21), 1 << 32)

NVML = "libnvidia-ml.so.1"
# Paths of JetPack 7 on the host, for a container without NVML.
HOST_LIBRARIES = (f"/usr/lib/aarch64-linux-gnu/nvidia/{NVML}", f"/usr/lib/aarch64-linux-gnu/{NVML}")
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7  # nvmlReturn_t (nvml.h of CUDA 12 and 13)
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_FIRST_CAPACITY = 64  # processes


class UnknownUseError(OSError):
    """The board does not report the memory of each process; the text has the reason."""


class NvmlError(OSError):
    """NVML is absent, or a call has failed."""


class MemoryUse:
    """Reads nvmap's list of clients, or NVML's on a Thor."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._host = HostTree(root)
        self._driver: str | None = None
        self._nvml: Nvml | None = None

    def by_process(self) -> dict[int, int]:
        """Give bytes by host pid. Raises UnknownUseError, and OSError for a shortage of descriptors."""
        self._driver = self._driver or detect(self._root).gpu.driver
        if self._driver is None:
            raise UnknownUseError("no Tegra GPU here (see `tegra-device-plugin detect`)")
        return self._by_nvml() if self._driver == _NVML_DRIVER else self._by_nvmap()

    def _by_nvmap(self) -> dict[int, int]:
        try:
            text = self._host.read(_CLIENTS, _CLIENTS_BYTES)
        except OSError as error:
            raise_own_shortage(error)
            raise UnknownUseError(
                f"cannot read {_CLIENTS}: {error.strerror}: mount debugfs, and make it visible here"
            ) from error
        return parse_clients(text.decode("latin-1"))

    def _by_nvml(self) -> dict[int, int]:
        if not has_host_pids(self._host):
            raise UnknownUseError("NVML needs the host's process ids: set hostPID in the agent's pod")
        try:
            if self._nvml is None:
                on_host = (f"{str(self._root).rstrip('/')}{path}" for path in HOST_LIBRARIES)
                self._nvml = Nvml((NVML, *on_host))
            return self._nvml.by_process()
        except NvmlError as error:
            # A handle is void after the driver was reloaded: the next call starts NVML again.
            self._nvml = None
            raise UnknownUseError(f"on this board only NVML lists GPU memory by process: {error}") from error


def measure(memory: MemoryUse, host: HostTree) -> tuple[dict[int, int], dict[int, Member]]:
    """Give the bytes by pid, and the pids of pods. Raises as `MemoryUse.by_process`."""
    used = memory.by_process()
    return used, members(host, filter(None, used))


def in_containers(
    used: Mapping[int, int], members: Mapping[int, Member], names: Mapping[str, str]
) -> Counter[tuple[str, str]]:
    """Give bytes by pod uid and container name; the name is empty for a container that is not in `names`."""
    found: Counter[tuple[str, str]] = Counter()
    for pid, member in members.items():
        found[member.uid, names.get(member.container, "")] += used[pid]
    return found


def by_container(root: Path) -> dict[tuple[str, str, str], int]:
    """Read the host below `root` once: bytes by namespace, pod and container. Raises UnknownUseError."""
    host = HostTree(root)
    if host.text("/proc/1/cgroup") is None:
        raise UnknownUseError(f"{root} does not show the host's processes: run this in the node agent's pod")
    used = in_containers(*measure(MemoryUse(root), host), container_names(host))
    pods = pod_names(host)
    return {
        (pod.namespace, pod.name, container): size
        for (uid, container), size in used.items()
        if (pod := pods.get(uid))
    }


def parse_clients(text: str) -> dict[int, int]:
    """Give bytes by host pid in nvmap's list of clients; the kernel's own buffers have pid 0.

    `text` is decoded so that every byte is one character.
    """
    used: dict[int, int] = {}
    for row in _ROW.finditer(text):
        pid, size = int(row["pid"]), int(row["size"])
        if row["unit"] == "K" and size in _WRAPPED_KIB:
            size += (1 << 22) - (1 << 32)
        used[pid] = used.get(pid, 0) + (size << _UNITS[row["unit"]])
    return used


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the functions with `_v3`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The one GPU, through NVML's C interface."""

    def __init__(self, libraries: Iterable[str]) -> None:
        """Load the first library that can be loaded. Raises NvmlError."""
        self._library = _load(libraries)
        self._device = ctypes.c_void_p()
        self._check("nvmlInit_v2")
        self._check("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(self._device))

    def by_process(self) -> dict[int, int]:
        """Give bytes by pid, in this process' pid namespace. Raises NvmlError.

        A process that computes and draws is in both lists with the same value.
        """
        found: dict[int, int] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._processes(f"nvmlDeviceGet{kind}RunningProcesses_v3"):
                if process.used != _NOT_AVAILABLE:
                    found[process.pid] = max(found.get(process.pid, 0), process.used)
        return found

    def _processes(self, function: str) -> list[_Process]:
        capacity = _FIRST_CAPACITY
        while True:
            count = ctypes.c_uint(capacity)
            list_ = (_Process * capacity)()
            status = self._call(function, self._device, ctypes.byref(count), list_)
            if status == _INSUFFICIENT_SIZE and count.value > capacity:
                capacity = count.value
                continue
            if status != _SUCCESS:
                raise NvmlError(f"{function}: NVML error {status}")
            return list_[: count.value]

    def _check(self, function: str, *arguments: object) -> None:
        if status := self._call(function, *arguments):
            raise NvmlError(f"{function}: NVML error {status}")

    def _call(self, function: str, *arguments: object) -> int:
        try:
            entry: Any = getattr(self._library, function)
        except AttributeError as error:
            raise NvmlError(f"{NVML} has no {function}") from error
        return int(entry(*arguments))


def _load(libraries: Iterable[str]) -> ctypes.CDLL:
    reason = "not found"
    for library in libraries:
        try:
            return ctypes.CDLL(library)
        except OSError as error:
            reason = str(error)
    raise NvmlError(f"no {NVML}: {reason}")
