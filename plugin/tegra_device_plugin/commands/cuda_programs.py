# SPDX-License-Identifier: Apache-2.0
"""`allocate`, `compute` and `device-query`: use the GPU as a CUDA program does.

`device-query` prints the lines of NVIDIA's sample deviceQuery (deviceQuery.cpp, cuda-samples).
The sample queries CUDA's runtime. This command queries the driver, so it needs no CUDA image.
The numbers are those of `CUdevice_attribute` in cuda.h.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, Command, say, until_signal
from tegra_device_plugin.cuda.program import MIB, Cuda, CudaError, Device, compute

# CUDA cores of a multiprocessor by compute capability: helper_cuda.h of cuda-samples, for Tegra's GPUs.
CORES = {(5, 3): 128, (6, 2): 128, (7, 2): 64, (8, 7): 128, (10, 1): 128, (11, 0): 128}
# The runtime's libraries of CUDA 13 to 10.2, the newest first.
RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so.10.2")
COMPUTE_MODES = (
    "Default (multiple host threads can use ::cudaSetDevice() with device simultaneously)",
    "Exclusive (only one host thread in one process is able to use ::cudaSetDevice() with this device)",
    "Prohibited (no host thread can use ::cudaSetDevice() with this device)",
    "Exclusive Process (many threads in one process is able to use ::cudaSetDevice() with this device)",
)
_LABEL_WIDTH = 49
_Read = Callable[[int], int]


def _allocate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mib", type=_positive, metavar="MIB", help="how much, in MiB")
    parser.add_argument("--hold", action="store_true", help="keep it until SIGTERM or SIGINT")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"an integer above 0 is needed, not {text!r}")
    return int(text)


def _allocate(options: argparse.Namespace) -> int:
    """Print the amount that was allocated; the exit code shows whether it was all."""
    with until_signal(options.hold):
        cuda = Cuda()
        allocated = cuda.allocate(options.mib)
        free, total = cuda.info()
        end = "" if allocated == options.mib else ", then CUDA was out of memory"
        say(f"allocated {allocated} of {options.mib} MiB{end}; CUDA says that {free} of {total} MiB are free")
    return EXIT_OK if allocated == options.mib else EXIT_FAILED


def _compute_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hold", action="store_true", help="then wait for SIGTERM or SIGINT")


def _compute(options: argparse.Namespace) -> int:
    """List the device nodes, run the kernel and check its result. Raises CudaError."""
    with until_signal(options.hold):
        for path in sorted(path for top in Path("/dev").glob("nv*") for path in (top, *top.rglob("*"))):
            if path.is_char_device():
                say(str(path))
        done = compute()
        say(f"computed {done.count} numbers on {done.device} in {done.seconds * 1000:.1f} ms, all are right")
    return EXIT_OK


def _device_query(_: argparse.Namespace) -> int:
    """Print the properties, and whether CUDA can be used. Raises CudaError."""
    say("tegra-device-plugin device-query starting...\n")
    say(" CUDA Device Query (Driver API)\n")
    try:
        for line in lines(Device()):
            say(line)
    except CudaError:
        say("Result = FAIL")
        raise
    say("Result = PASS")
    return EXIT_OK


def lines(device: Device) -> Iterator[str]:
    """Give the text on the first device. Raises CudaError."""
    yield f"Detected {device.count()} CUDA Capable device(s)\n"
    yield f'Device 0: "{device.name()}"'
    driver, runtime = version(device.cuda_version()), runtime_version()
    yield _line("CUDA Driver Version / Runtime Version", f"{driver} / {runtime}")
    size = device.total_bytes()
    major, minor = device.attribute(75), device.attribute(76)
    yield _line("CUDA Capability Major/Minor version number:", f"{major}.{minor}")
    yield _line("Total amount of global memory:", f"{size / MIB:.0f} MBytes ({size} bytes)")
    processors = device.attribute(16)
    cores = CORES.get((major, minor))
    if cores is None:
        yield _line("Multiprocessors:", str(processors))
    else:
        label = f"({processors:03}) Multiprocessors, ({cores:03}) CUDA Cores/MP:"
        yield _line(label, f"{processors * cores} CUDA Cores")
    for label, value in _LIMITS:
        yield _line(label, value(device.attribute))
    yield "  Compute Mode:"
    yield f"     < {COMPUTE_MODES[device.attribute(20)]} >\n"


def version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def runtime_version() -> str:
    """Give the version of the CUDA runtime in this container, or `none`: many programs bring it."""
    for name in RUNTIMES:
        try:
            runtime = ctypes.CDLL(name)
        except OSError:
            continue
        number = ctypes.c_int()
        if runtime.cudaRuntimeGetVersion(ctypes.byref(number)) == 0:
            return version(number.value)
    return "none"


def _line(label: str, value: str) -> str:
    return f"  {label}".ljust(_LABEL_WIDTH) + value


def _number(number: int, unit: str = "") -> Callable[[_Read], str]:
    return lambda read: f"{read(number)}{unit}"


def _answer(number: int, yes: str = "Yes", no: str = "No") -> Callable[[_Read], str]:
    return lambda read: yes if read(number) else no


def _clock(number: int) -> Callable[[_Read], str]:
    return lambda read: f"{read(number) / 1000:.0f} MHz ({read(number) / 1e6:0.2f} GHz)"


def _sizes(*numbers: int) -> Callable[[_Read], str]:
    return lambda read: f"({', '.join(str(read(number)) for number in numbers)})"


def _copies(read: _Read) -> str:
    return f"{'Yes' if read(15) else 'No'} with {read(40)} copy engine(s)"


def _textures(read: _Read) -> str:
    return f"1D={_sizes(21)(read)}, 2D={_sizes(22, 23)(read)}, 3D={_sizes(24, 25, 26)(read)}"


_LIMITS: tuple[tuple[str, Callable[[_Read], str]], ...] = (
    ("GPU Max Clock rate:", _clock(13)),
    ("Memory Clock rate:", lambda read: f"{read(36) / 1000:.0f} Mhz"),
    ("Memory Bus Width:", _number(37, "-bit")),
    ("L2 Cache Size:", _number(38, " bytes")),
    ("Maximum Texture Dimension Size (x,y,z)", _textures),
    (
        "Maximum Layered 1D Texture Size, (num) layers",
        lambda read: f"1D={_sizes(42)(read)}, {read(43)} layers",
    ),
    (
        "Maximum Layered 2D Texture Size, (num) layers",
        lambda read: f"2D={_sizes(27, 28)(read)}, {read(29)} layers",
    ),
    ("Total amount of constant memory:", _number(9, " bytes")),
    ("Total amount of shared memory per block:", _number(8, " bytes")),
    ("Total shared memory per multiprocessor:", _number(81, " bytes")),
    ("Total number of registers available per block:", _number(12)),
    ("Warp size:", _number(10)),
    ("Maximum number of threads per multiprocessor:", _number(39)),
    ("Maximum number of threads per block:", _number(1)),
    ("Max dimension size of a thread block (x,y,z):", _sizes(2, 3, 4)),
    ("Max dimension size of a grid size    (x,y,z):", _sizes(5, 6, 7)),
    ("Maximum memory pitch:", _number(11, " bytes")),
    ("Texture alignment:", _number(14, " bytes")),
    ("Concurrent copy and kernel execution:", _copies),
    ("Run time limit on kernels:", _answer(17)),
    ("Integrated GPU sharing Host Memory:", _answer(18)),
    ("Support host page-locked memory mapping:", _answer(19)),
    ("Alignment requirement for Surfaces:", _answer(30)),
    ("Device has ECC support:", _answer(32, "Enabled", "Disabled")),
    ("Device supports Unified Addressing (UVA):", _answer(41)),
    ("Device supports Managed Memory:", _answer(83)),
    ("Device supports Compute Preemption:", _answer(90)),
    ("Supports Cooperative Kernel Launch:", _answer(95)),
    (
        "Device PCI Domain ID / Bus ID / location ID:",
        lambda read: " / ".join(str(read(number)) for number in (50, 33, 34)),
    ),
)


COMMANDS = {
    "allocate": Command(_allocate_arguments, _allocate),
    "compute": Command(_compute_arguments, _compute),
    "device-query": Command(lambda _: None, _device_query),
}
