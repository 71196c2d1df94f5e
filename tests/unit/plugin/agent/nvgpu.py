# SPDX-License-Identifier: Apache-2.0
"""SIMULATED control node of nvgpu's scheduler: the driver's answers to each call, after os/linux/sched.c.

The numbers are written out, not taken from the agent. Nothing here knows how a real GPU divides its time.
"""

import ctypes
import errno
import os
import select
import struct
from collections.abc import Callable
from dataclasses import dataclass

GET_TSGS, GET_PARAMS, SET_TIMESLICE = 0xC010_5301, 0xC020_5304, 0x4008_5305
GET_API_VERSION, GET_TSG, PUT_TSG = 0x8004_5309, 0x4004_530A, 0x4004_530B


class BoardCrashedError(AssertionError):
    """The call that would have crashed a board with L4T R32 was made."""


@dataclass
class Context:
    """A TSG. `compute` is its preemption mode, 0 until it has a graphics context."""

    pid: int
    timeslice: int = 1024
    compute: int = 2
    references: int = 1


class SimulatedNvgpu:
    """The driver; also stands for the kernel that passes calls on to it."""

    def __init__(self) -> None:
        self.contexts: dict[int, Context] = {}
        self.bitmap_bytes = 64
        self.version = 1
        self.opened_by_another = False
        self.longest = 50_000
        self.calls: list[int] = []
        self.slices_set: list[tuple[int, int]] = []
        self.opened: list[str] = []
        self.before_call: Callable[[int], object] = lambda _request: None
        self._writer: int | None = None

    def runs(self, number: int, pid: int, compute: int = 2) -> None:
        """A process opens a context."""
        self.contexts[number] = Context(pid, compute=compute)

    def ends(self, number: int) -> None:
        """A process drops its reference; the context exists until its last reference."""
        self._drop(number)

    @property
    def is_open(self) -> bool:
        if self._writer is None:
            return False
        poll = select.poll()
        poll.register(self._writer, 0)
        return not any(event & select.POLLERR for _, event in poll.poll(0))

    def open(self, path: str) -> int:
        if self.opened_by_another or self.is_open:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        if self._writer is not None:
            os.close(self._writer)
        self.opened.append(path)
        reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return reader

    def ioctl(self, fd: int, request: int, argument: bytearray) -> None:
        os.fstat(fd)  # EBADF: it was closed
        self.calls.append(request)
        self.before_call(request)
        if len(argument) != request >> 16 & 0x3FFF:
            raise OSError(errno.EFAULT, "the structure's size is not the number's")
        answers = {
            GET_TSGS: self._tsgs,
            GET_PARAMS: self._params,
            SET_TIMESLICE: self._timeslice,
            GET_API_VERSION: self._api_version,
            GET_TSG: self._get,
            PUT_TSG: self._put,
        }
        if request not in answers:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        answers[request](argument)

    def _tsgs(self, argument: bytearray) -> None:
        size, address = struct.unpack("=I4xQ", argument)
        if size < self.bitmap_bytes:
            argument[:4] = struct.pack("=I", self.bitmap_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        bits = sum(1 << number for number in self.contexts)
        ctypes.memmove(address, bits.to_bytes(self.bitmap_bytes, "little"), self.bitmap_bytes)

    def _params(self, argument: bytearray) -> None:
        number, *_ = struct.unpack("=5I4xQ", argument)
        one = self._context(number)
        argument[:] = struct.pack("=5I4xQ", number, one.timeslice, 0, 0, one.compute, one.pid)

    def _timeslice(self, argument: bytearray) -> None:
        number, microseconds = struct.unpack("=II", argument)
        one = self._context(number)
        if not 1000 <= microseconds <= self.longest:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not one.compute:
            raise BoardCrashedError(number)
        one.timeslice = microseconds
        self.slices_set.append((number, microseconds))

    def _api_version(self, argument: bytearray) -> None:
        argument[:] = struct.pack("=I", self.version)

    def _get(self, argument: bytearray) -> None:
        (number,) = struct.unpack("=I", argument)
        self._context(number).references += 1

    def _put(self, argument: bytearray) -> None:
        (number,) = struct.unpack("=I", argument)
        self._context(number)
        self._drop(number)

    def _drop(self, number: int) -> None:
        self.contexts[number].references -= 1
        if not self.contexts[number].references:
            del self.contexts[number]

    def _context(self, number: int) -> Context:
        if number >= self.bitmap_bytes * 8:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if number not in self.contexts:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return self.contexts[number]
