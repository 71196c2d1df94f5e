# SPDX-License-Identifier: Apache-2.0
"""CUDA's driver API by ctypes, for the programs of the tests: they run in processes of their own.

ctypes finds functions by dlsym, as CUDA's runtime does. Sizes are in MiB. An allocation gives None when the
driver says that it is out of memory, and stops the program at any other error.
"""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

MIB = 1 << 20
OUT_OF_MEMORY = 2
driver = ctypes.CDLL("libcuda.so.1")


class Array(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


def call(name: str, *arguments: Any) -> int:
    result = getattr(driver, name)(*arguments)
    assert result in (0, OUT_OF_MEMORY), f"{name}: {result}"
    return int(result)


def make(name: str, *arguments: Any) -> int | None:
    """Call a function whose first argument is where the new pointer or handle goes."""
    new = c_uint64()
    return None if call(name, byref(new), *arguments) else new.value


def start(device: int = 0) -> None:
    """Use the device's primary context, as CUDA's runtime does."""
    assert driver.cuInit(0) == 0
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)


def alloc(mib: float) -> int | None:
    return make("cuMemAlloc_v2", c_size_t(int(mib * MIB)))


def free(pointer: int) -> None:
    call("cuMemFree_v2", c_uint64(pointer))


def info() -> tuple[float, float]:
    left, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(left), byref(total))
    return left.value / MIB, total.value / MIB


def used() -> float:
    """Return what the SIMULATED driver has really given to this process."""
    driver.simulated_used.restype = c_size_t
    return int(driver.simulated_used()) / MIB
