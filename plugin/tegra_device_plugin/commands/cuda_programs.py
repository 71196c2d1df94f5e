# SPDX-License-Identifier: Apache-2.0
"""`allocate`, `compute` and `device-query`: use the GPU as a CUDA program does.

`device-query` prints the main lines of NVIDIA's sample deviceQuery (deviceQuery.cpp, cuda-samples).
The sample queries CUDA's runtime. This command queries the driver, so it needs no CUDA image.
The numbers are those of `CUdevice_attribute` in cuda.h.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tegra_device_plugin.commands.common import EXIT_FAILED, EXIT_OK, Command, print_line, until_signal
from tegra_device_plugin.cuda.program import MIB, Cuda, CudaError, Device, compute

# CUDA cores of a multiprocessor by compute capability: helper_cuda.h of cuda-samples, for Tegra's GPUs.
CORES = {(5, 3): 128, (6, 2): 128, (7, 2): 64, (8, 7): 128, (10, 1): 128, (11, 0): 128}
_LABEL_WIDTH = 49


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
        print_line(
            f"allocated {allocated} of {options.mib} MiB{end}; CUDA says that {free} of {total} MiB are free"
        )
    return EXIT_OK if allocated == options.mib else EXIT_FAILED


def _compute_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hold", action="store_true", help="then wait for SIGTERM or SIGINT")


def _compute(options: argparse.Namespace) -> int:
    """List the device nodes, run the kernel and check its result. Raises CudaError."""
    with until_signal(options.hold):
        for path in sorted(path for top in Path("/dev").glob("nv*") for path in (top, *top.rglob("*"))):
            if path.is_char_device():
                print_line(str(path))
        done = compute()
        print_line(
            f"computed {done.count} numbers on {done.device} in {done.seconds * 1000:.1f} ms, all are right"
        )
    return EXIT_OK


def _device_query(_: argparse.Namespace) -> int:
    """Print the properties, and whether CUDA can be used. Raises CudaError."""
    print_line("tegra-device-plugin device-query starting...\n")
    print_line(" CUDA Device Query (Driver API)\n")
    try:
        for line in lines(Device()):
            print_line(line)
    except CudaError:
        print_line("Result = FAIL")
        raise
    print_line("Result = PASS")
    return EXIT_OK


def lines(device: Device) -> Iterator[str]:
    """Give the text on the first device. Raises CudaError."""
    yield f"Detected {device.count()} CUDA Capable device(s)\n"
    yield f'Device 0: "{device.name()}"'
    version = device.cuda_version()
    yield _line("CUDA Driver Version:", f"{version // 1000}.{version % 1000 // 10}")
    major, minor = device.attribute(75), device.attribute(76)
    yield _line("CUDA Capability Major/Minor version number:", f"{major}.{minor}")
    size = device.total_bytes()
    yield _line("Total amount of global memory:", f"{size / MIB:.0f} MBytes ({size} bytes)")
    processors = device.attribute(16)
    cores = CORES.get((major, minor))
    if cores is None:
        yield _line("Multiprocessors:", str(processors))
    else:
        label = f"({processors:03}) Multiprocessors, ({cores:03}) CUDA Cores/MP:"
        yield _line(label, f"{processors * cores} CUDA Cores")
    yield _line("GPU Max Clock rate:", f"{device.attribute(13) / 1000:.0f} MHz")
    integrated = "Yes" if device.attribute(18) else "No"
    yield _line("Integrated GPU sharing Host Memory:", f"{integrated}\n")


def _line(label: str, value: str) -> str:
    return f"  {label}".ljust(_LABEL_WIDTH) + value


COMMANDS = {
    "allocate": Command(_allocate_arguments, _allocate),
    "compute": Command(_compute_arguments, _compute),
    "device-query": Command(lambda _: None, _device_query),
}
