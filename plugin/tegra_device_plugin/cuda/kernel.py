# SPDX-License-Identifier: Apache-2.0
"""Computes on the GPU, and by another way on the CPU: a GPU that is listed need not work."""

from __future__ import annotations

import ctypes
import secrets
from array import array
from dataclasses import dataclass
from importlib.resources import files
from time import perf_counter

from tegra_device_plugin.cuda.driver import Cuda, CudaError

# Of step.ptx: a linear congruential generator, with the numbers of "Numerical Recipes", modulo 2^32.
FACTOR, SUMMAND, MODULUS = 1664525, 1013904223, 1 << 32
# Blocks enough for every multiprocessor of the largest board (20, Thor), of threads that every GPU takes.
BLOCKS, THREADS = 256, 256
COUNT = BLOCKS * THREADS
ROUNDS = 16
_KERNEL = "step"


@dataclass(frozen=True)
class Computed:
    """How many numbers came out right, of the GPU's name, and the seconds from the launch to the last."""

    count: int
    device: str
    seconds: float


def compute() -> Computed:
    """Run the kernel once, on numbers nobody has seen before. Raises CudaError, also for a wrong result."""
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
    """What the kernel makes of numbers: all rounds in one step, by the generator's closed form."""
    factor = pow(FACTOR, ROUNDS, MODULUS)
    # 1 + FACTOR + FACTOR^2 + ...: exact, as FACTOR - 1 divides FACTOR^ROUNDS - 1.
    summand = SUMMAND * ((FACTOR**ROUNDS - 1) // (FACTOR - 1)) % MODULUS
    return array("I", ((number * factor + summand) % MODULUS for number in numbers))
