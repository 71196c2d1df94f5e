# SPDX-License-Identifier: Apache-2.0
"""CUDA's driver API by ctypes, as far as memory and one kernel need it. Signatures: NVIDIA's cuda.h."""

from __future__ import annotations

import ctypes
import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from time import perf_counter
from typing import Any

# By the loader, else in L4T's directories (since R36, and before), where no ldconfig is needed.
LIBRARIES = (
    "libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1",
    "/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1",
)
MIB = 1 << 20
# Small, to come near a limit; large, to be quick. A multiple of the driver's own 2 MiB.
STEP_MIB = 16

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY, cuda.h
_NAME_BYTES = 100


class CudaError(OSError):
    """The driver cannot be loaded, or a call failed for another reason than memory."""


class Device:
    """The first GPU. Without a context, which takes memory. Raises CudaError."""

    def __init__(self) -> None:
        self._driver = _load()
        self._call("cuInit", 0)
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)

    def name(self) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode()

    def count(self) -> int:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def cuda_version(self) -> int:
        """Give the newest CUDA that the driver serves: 12060 is 12.6."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def total_bytes(self) -> int:
        """Give the size of the GPU's memory. On a Jetson, this is the board's memory."""
        size = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(size), self._device)
        return size.value

    def attribute(self, number: int) -> int:
        """Give a CUdevice_attribute of cuda.h. Older drivers reject newer numbers."""
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> bool:
        """Call a function; True if it was out of memory."""
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


class Cuda(Device):
    """The first GPU, in its primary context, as CUDA's runtime uses it. Raises CudaError."""

    def __init__(self) -> None:
        super().__init__()
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, mib: int) -> int:
        """Allocate `mib` MiB, in steps, until the process ends; give the MiB allocated."""
        allocated = 0
        while allocated < mib:
            step = min(STEP_MIB, mib - allocated)
            if self._call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(step * MIB)):
                break
            allocated += step
        return allocated

    def info(self) -> tuple[int, int]:
        """Give free and total memory by the driver, in MiB."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB

    def kernel(self, ptx: bytes, name: str) -> ctypes.c_void_p:
        """Compile PTX for this GPU by the driver; give the kernel of that name."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._checked_call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx))
        self._checked_call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def upload(self, numbers: array[int]) -> ctypes.c_uint64:
        """Copy the numbers into the GPU's memory, until the process ends; give the address."""
        place, size = ctypes.c_uint64(), _size(numbers)
        self._checked_call("cuMemAlloc_v2", ctypes.byref(place), size)
        self._checked_call("cuMemcpyHtoD_v2", place, _memory(numbers), size)
        return place

    def download(self, place: ctypes.c_uint64, numbers: array[int]) -> None:
        """Replace the numbers by the content of that address."""
        self._checked_call("cuMemcpyDtoH_v2", _memory(numbers), place, _size(numbers))

    def launch(self, kernel: ctypes.c_void_p, blocks: int, threads: int, *parameters: Any) -> None:
        """Run a kernel to its end, in so many blocks of so many threads."""
        places = (ctypes.c_void_p * len(parameters))(
            *(ctypes.cast(ctypes.byref(parameter), ctypes.c_void_p) for parameter in parameters)
        )
        shared_bytes, stream, extra = 0, None, None
        self._checked_call(
            "cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, places, extra
        )  # fmt: skip
        self._checked_call("cuCtxSynchronize")

    def _checked_call(self, name: str, *arguments: Any) -> None:
        if self._call(name, *arguments):
            raise CudaError(f"{name}: {self._error(_OUT_OF_MEMORY)}")


def _size(numbers: array[int]) -> ctypes.c_size_t:
    return ctypes.c_size_t(len(numbers) * numbers.itemsize)


def _memory(numbers: array[int]) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * _size(numbers).value).from_buffer(numbers)


def _load() -> ctypes.CDLL:
    problems = []
    for path in LIBRARIES:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            problems.append(str(error))
    raise CudaError(f"no CUDA driver in this container: {problems[0]}")


# Of step.ptx: a linear congruential generator, with the numbers of "Numerical Recipes", modulo 2^32.
FACTOR, SUMMAND, MODULUS = 1664525, 1013904223, 1 << 32
# Enough blocks for every multiprocessor of the largest board (20, Thor), with threads that every GPU
# supports.
BLOCKS, THREADS = 256, 256
COUNT = BLOCKS * THREADS
ROUNDS = 16
_KERNEL = "step"


@dataclass(frozen=True)
class Computed:
    """The count of correct numbers, the GPU's name, and the seconds of the run."""

    count: int
    device: str
    seconds: float


def compute() -> Computed:
    """Run the kernel once, on random numbers. Raises CudaError, also for a wrong result."""
    given = array("I", secrets.token_bytes(COUNT * 4))
    cuda = Cuda()
    got = array("I", bytes(COUNT * 4))
    source = files("tegra_device_plugin.cuda").joinpath("step.ptx").read_bytes()
    kernel = cuda.kernel(source, _KERNEL)
    place = cuda.upload(given)
    start = perf_counter()
    cuda.launch(kernel, BLOCKS, THREADS, place, ctypes.c_uint32(COUNT), ctypes.c_uint32(ROUNDS))
    seconds = perf_counter() - start
    cuda.download(place, got)
    wrong = sum(one != other for one, other in zip(got, expected(given), strict=True))
    if wrong:
        raise CudaError(f"{wrong} of {COUNT} numbers came back wrong from the GPU")
    return Computed(COUNT, cuda.name(), seconds)


def expected(numbers: array[int]) -> array[int]:
    """Give the kernel's result: all rounds in one step, by the generator's closed form."""
    factor = pow(FACTOR, ROUNDS, MODULUS)
    # 1 + FACTOR + FACTOR^2 + ...: exact, as FACTOR - 1 divides FACTOR^ROUNDS - 1.
    summand = SUMMAND * ((FACTOR**ROUNDS - 1) // (FACTOR - 1)) % MODULUS
    return array("I", ((number * factor + summand) % MODULUS for number in numbers))
