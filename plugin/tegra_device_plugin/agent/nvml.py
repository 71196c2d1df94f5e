# SPDX-License-Identifier: Apache-2.0
"""How much GPU memory each process holds on a Thor, whose driver bypasses nvmap: NVML knows it there.

Only this is asked of NVML, so its C interface is called directly (nvml.h of CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

SONAME = "libnvidia-ml.so.1"
# Where JetPack 7 has it on the host, for a container without it.
HOST_LIBRARIES = (
    f"/usr/lib/aarch64-linux-gnu/nvidia/{SONAME}",
    f"/usr/lib/aarch64-linux-gnu/{SONAME}",
)

_SUCCESS, _INSUFFICIENT_SIZE = 0, 7  # nvmlReturn_t
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_ROOM = 64  # processes, at first


class NvmlError(OSError):
    """NVML is not here, or does not tell."""


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the functions with `_v3`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The one GPU, as NVML sees it."""

    def __init__(self, libraries: Iterable[str]) -> None:
        """Load the first library that can be loaded. Raises NvmlError."""
        self._library = _load(libraries)
        self._device = ctypes.c_void_p()
        self._check("nvmlInit_v2")
        self._check("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(self._device))

    def held(self) -> dict[int, int]:
        """Bytes by pid, as this process' pid namespace counts; raises NvmlError.

        A process that computes and draws is in both lists with the same figure.
        """
        found: dict[int, int] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._processes(f"nvmlDeviceGet{kind}RunningProcesses_v3"):
                if process.used != _NOT_AVAILABLE:
                    found[process.pid] = max(found.get(process.pid, 0), process.used)
        return found

    def _processes(self, function: str) -> list[_Process]:
        room = _ROOM
        while True:
            count = ctypes.c_uint(room)
            list_ = (_Process * room)()
            status = self._call(function, self._device, ctypes.byref(count), list_)
            if status == _INSUFFICIENT_SIZE and count.value > room:
                room = count.value
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
            raise NvmlError(f"{SONAME} has no {function}") from error
        return int(entry(*arguments))


def _load(libraries: Iterable[str]) -> ctypes.CDLL:
    why = "not found"
    for library in libraries:
        try:
            return ctypes.CDLL(library)
        except OSError as error:
            why = str(error)
    raise NvmlError(f"no {SONAME}: {why}")
