# SPDX-License-Identifier: Apache-2.0
"""nvgpu's scheduler control node: the GPU contexts (TSGs), their processes and their time slices.

Numbers and structures are those of nvgpu's include/uapi/linux/nvgpu.h, "/dev/nvhost-sched-gpu device", which
are the same from L4T R32 to R36. The two calls that lock and unlock control are left out on purpose: while
control is locked, nvgpu rejects every new CUDA context of the board (ioctl_tsg.c).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from typing import Protocol

from tegra_device_plugin.system.hosttree import HostTree

# Two names of one device on the host; the first exists from R34 on. Both appear when the GPU is first
# switched on.
NODES = ("/dev/nvgpu/igpu0/sched", "/dev/nvhost-sched-gpu")
API_VERSION = 1  # NVGPU_SCHED_API_VERSION

# What TSG_SET_TIMESLICE takes, in microseconds (nvgpu's tsg.h, NVGPU_TSG_TIMESLICE_{MIN,MAX}_US).
MIN_TIMESLICE_US, MAX_TIMESLICE_US = 1000, 50_000

_TSGS = struct.Struct("=I4xQ")  # nvgpu_sched_get_tsgs_args: size of the buffer, its address
# ..._tsg_get_params_args: id, timeslice, interleave, graphics, compute, pid
_PARAMS = struct.Struct("=5I4xQ")
_TIMESLICE = struct.Struct("=II")  # ..._tsg_timeslice_args: id, microseconds
_REFERENCE = struct.Struct("=I")  # ..._tsg_refcount_args: id
_VERSION = struct.Struct("=I")  # ..._api_version_args

_WRITE, _READ = 1, 2  # asm-generic/ioctl.h, which x86 and arm64 share


def _ioc(direction: int, number: int, argument: struct.Struct) -> int:
    return direction << 30 | argument.size << 16 | ord("S") << 8 | number


GET_TSGS = _ioc(_READ | _WRITE, 1, _TSGS)
TSG_GET_PARAMS = _ioc(_READ | _WRITE, 4, _PARAMS)
TSG_SET_TIMESLICE = _ioc(_WRITE, 5, _TIMESLICE)
GET_API_VERSION = _ioc(_READ, 9, _VERSION)
GET_TSG = _ioc(_WRITE, 10, _REFERENCE)
PUT_TSG = _ioc(_WRITE, 11, _REFERENCE)

# NVGPU_COMPUTE_PREEMPTION_MODE_*: where a context can be interrupted.
_PREEMPTION = {1: "wfi", 2: "cta", 4: "cilp"}

_BITMAP_SIZE = 8  # of the first bitmap, 512 contexts; the driver reports the size that it needs


def find_node(host: HostTree) -> str | None:
    """The control node's path on the host; None on a board without it."""
    return next((path for path in NODES if host.is_node(path)), None)


class UnsupportedError(OSError):
    """The driver's control node has an unknown version."""


@dataclass(frozen=True)
class Tsg:
    """A time-sliced group of channels: a process' CUDA context, for the GPU's scheduler."""

    id: int
    pid: int
    """The process that opened it, in the host's pid namespace."""
    timeslice_us: int
    compute_preemption: str
    """`wfi`, `cta` or `cilp`: the end of the work, a thread block, an instruction; empty if unknown."""
    ready: bool
    """It has a graphics context, thus also a channel and a runlist."""


class Kernel(Protocol):
    """The calls to the operating system; tests have a simulated driver."""

    def open(self, path: str) -> int:
        """Open the node at `path`, without waiting; give the descriptor. Raises OSError."""

    def ioctl(self, fd: int, request: int, argument: bytearray) -> None:
        """Make a call, which may write into `argument` even if it fails. Raises OSError."""


class Linux:
    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def ioctl(self, fd: int, request: int, argument: bytearray) -> None:
        fcntl.ioctl(fd, request, argument, True)


class ControlNode:
    """The control node, open: nvgpu allows one process at a time."""

    def __init__(self, path: str, kernel: Kernel) -> None:
        """Open the node at `path`. Raises UnsupportedError, and OSError (EBUSY: another process has it)."""
        self._kernel = kernel
        self._bitmap_size = _BITMAP_SIZE
        self.fd = kernel.open(path)
        try:
            self._check_version(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the node for other processes. Time slices stay as they were set."""
        os.close(self.fd)

    def tsgs(self) -> list[Tsg]:
        """Give all contexts. Raises OSError."""
        found = (self._params(number) for number in self._active())
        return [tsg for tsg in found if tsg]

    def set_timeslice(self, tsg: Tsg, microseconds: int) -> bool:
        """Set the time slice of a context; False if the context has ended. Raises OSError.

        A reference protects the context's number from a new owner. Up to R32, a call for a new context
        crashes the board: the context has no runlist yet (gk20a_fifo_update_runlist, `&f->runlist_info[~0]`).
        """
        try:
            self._kernel.ioctl(self.fd, GET_TSG, bytearray(_REFERENCE.pack(tsg.id)))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        try:
            now = self._params(tsg.id)
            if now is None or not now.ready or now.pid != tsg.pid:
                return False
            self._kernel.ioctl(self.fd, TSG_SET_TIMESLICE, bytearray(_TIMESLICE.pack(tsg.id, microseconds)))
        finally:
            self._kernel.ioctl(self.fd, PUT_TSG, bytearray(_REFERENCE.pack(tsg.id)))
        return True

    def _params(self, number: int) -> Tsg | None:
        """Give a context, None if it has ended."""
        argument = bytearray(_PARAMS.pack(number, 0, 0, 0, 0, 0))
        try:
            self._kernel.ioctl(self.fd, TSG_GET_PARAMS, argument)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None
        _, timeslice, _, graphics, compute, pid = _PARAMS.unpack(argument)
        return Tsg(number, pid, timeslice, _PREEMPTION.get(compute, ""), ready=bool(graphics or compute))

    def _check_version(self, path: str) -> None:
        argument = bytearray(_VERSION.size)
        try:
            self._kernel.ioctl(self.fd, GET_API_VERSION, argument)
        except OSError as error:
            raise UnsupportedError(f"{path}: no scheduling API: {error.strerror}") from error
        (version,) = _VERSION.unpack(argument)
        if version != API_VERSION:
            raise UnsupportedError(
                f"{path}: scheduling API version {version}; this program supports {API_VERSION}"
            )

    def _active(self) -> list[int]:
        """Give the numbers in the driver's bitmap of contexts."""
        while True:
            bitmap = (ctypes.c_uint64 * self._bitmap_size)()
            size = ctypes.sizeof(bitmap)
            argument = bytearray(_TSGS.pack(size, ctypes.addressof(bitmap)))
            try:
                self._kernel.ioctl(self.fd, GET_TSGS, argument)
            except OSError as error:
                needed, _ = _TSGS.unpack(argument)
                if error.errno != errno.ENOSPC or needed <= size:
                    raise
                self._bitmap_size = -(-needed // 8)
                continue
            return [
                64 * place + bit for place, word in enumerate(bitmap) for bit in range(64) if word >> bit & 1
            ]
