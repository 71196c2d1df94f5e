# SPDX-License-Identifier: Apache-2.0
"""A CUDA program in Python: allocates memory of the GPU, to see how far a container may go.

It uses CUDA's driver API, which every JetPack has, by ctypes: no toolkit, no compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

LIBRARY = "libcuda.so.1"
# Where L4T keeps it (since R36, and before): an image's loader may not know.
DIRECTORIES = ("/usr/lib/aarch64-linux-gnu/nvidia", "/usr/lib/aarch64-linux-gnu/tegra")
MIB = 1 << 20
# Small enough to come near a limit, large enough to be quick. Also a multiple of the driver's own 2 MiB.
STEP_MIB = 16

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY, cuda.h


class CudaError(OSError):
    """The driver cannot be loaded, or refused a call for another reason than memory."""


class Cuda:
    """The first GPU, in its primary context, as CUDA's runtime uses it. Raises CudaError."""

    def __init__(self) -> None:
        self._driver = _load()
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, mib: int) -> int:
        """Allocate `mib` MiB, in steps, for as long as the process lives; give how many there were."""
        allocated = 0
        while allocated < mib:
            step = min(STEP_MIB, mib - allocated)
            if self._call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(step * MIB)):
                break
            allocated += step
        return allocated

    def info(self) -> tuple[int, int]:
        """Give what the driver says is free and what there is in all, in MiB."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB

    def _call(self, name: str, *arguments: Any) -> bool:
        """Tell whether the call was out of memory."""
        result: int = self._function(name)(*arguments)
        if result not in (0, _OUT_OF_MEMORY):
            raise CudaError(f"{name}: {self._error(result)}")
        return result != 0

    def _error(self, number: int) -> str:
        name = ctypes.c_char_p()
        if self._function("cuGetErrorName")(number, ctypes.byref(name)) or not name.value:
            return f"error {number}"
        return f"{name.value.decode()} ({number})"

    def _function(self, name: str) -> Callable[..., int]:
        try:
            function: Callable[..., int] = getattr(self._driver, name)
        except AttributeError:
            raise CudaError(f"this driver has no {name}") from None
        return function


def _load() -> ctypes.CDLL:
    problems = []
    for path in (LIBRARY, *(f"{directory}/{LIBRARY}" for directory in DIRECTORIES)):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            problems.append(str(error))
    raise CudaError(f"no CUDA driver in this container: {problems[0]}")
