# SPDX-License-Identifier: Apache-2.0
"""The kubelet's directory of plugin sockets: names, who serves there, what is left over."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc import aio

from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import Identity

KUBELET_SOCKET = "kubelet.sock"
MAX_SOCKET_PATH = 107  # bytes; sockaddr_un.sun_path without its NUL

_PREFIX = "tegra-gpu-"
_SUFFIX = ".sock"

# Socket names carry the start of the process, so that two instances can tell which is the newer one, and a
# number per registration: newer kubelets answer a Register of a socket path they still track without
# dialling it.
INSTANCE = f"{_PREFIX}{time.time_ns():016x}"
_NUMBERS = itertools.count()
_LONGEST_NAME = f"{INSTANCE}-{10**9}{_SUFFIX}"

# Of a mount point's name: the kernel's mangle() of blanks and backslashes.
_ESCAPED = re.compile(r"\\([0-7]{3})")

# A start takes milliseconds. An end: so long for the running calls, and so long for all of it.
_START_SECONDS = 5.0
_GRACE_SECONDS = 1.0
_STOP_SECONDS = 2.0

_SPARE_DESCRIPTORS = 16  # gRPC 1.85 takes 7 for its first channel

Services: TypeAlias = "Mapping[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]"
"""Methods by name, by the full name of their service."""

logger = logging.getLogger(__name__)


class StaleMountError(OSError):
    """The directory that this container has mounted does not exist any more."""


def check_descriptors() -> None:
    """Raise OSError unless gRPC finds the descriptors that it needs: without them it aborts the process."""
    spare: list[int] = []
    try:
        while len(spare) < _SPARE_DESCRIPTORS:
            spare.append(os.eventfd(0))
    finally:
        for descriptor in spare:
            os.close(descriptor)


def new_name() -> str:
    """Give a name for a socket that this process has not had yet."""
    return f"{INSTANCE}-{next(_NUMBERS)}{_SUFFIX}"


def is_newer(name: str) -> bool:
    """Tell whether the socket `name` belongs to a process of this plugin that started later than this one."""
    return name > INSTANCE and not _is_own(name)


def rivals(directory: Path) -> frozenset[str]:
    """Names of the sockets in `directory` on which other instances of this plugin serve."""
    # To ask one's own costs a connection of its gRPC server each time.
    return frozenset(name for name in _names(directory) if not _is_own(name) and accepts(directory / name))


def sweep(directory: Path) -> None:
    """Remove the sockets that killed instances left behind; a living one's answer."""
    for name in _names(directory):
        if not accepts(directory / name):
            with suppress(OSError):
                (directory / name).unlink()
                logger.info("removed the stale socket %s", name)


def accepts(path: Path) -> bool:
    """Tell whether somebody listens on the unix socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # the queue is full: busy, not dead
            return True
        except OSError:
            return False
    return True


def check_length(directory: Path) -> None:
    """Raise OSError if the sockets in `directory` would have longer paths than a socket's address takes."""
    check_path(directory / _LONGEST_NAME)


def check_path(path: Path) -> None:
    """Raise OSError if a socket's address does not take this path."""
    spare = MAX_SOCKET_PATH - len(os.fsencode(path))
    if spare < 0:
        raise OSError(f"{path.parent}: too long for the sockets in it, by {-spare} bytes")


def check_mount(directory: Path) -> None:
    """Raise StaleMountError if `directory` was deleted under a mount of it, which never shows a new one.

    A container that starts again gets the new one; ending is all that can be done about it from inside.
    Without a mount, too, there is a moment in which a directory that goes can be seen without a name.
    """
    with suppress(FileNotFoundError):
        if directory.stat().st_nlink == 0 and _is_mount_point(directory):
            raise StaleMountError(
                f"{directory} was deleted on the host, and this container still has the deleted one: "
                "it has to start again"
            )


def _is_mount_point(directory: Path) -> bool:
    """Tell whether something is mounted there (proc_pid_mountinfo(5)); `Path.is_mount` misses bind mounts."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    points = (line.split(" ", 5)[4] for line in mounts.splitlines())
    return os.path.realpath(directory) in (
        _ESCAPED.sub(lambda found: chr(int(found[1], 8)), point) for point in points
    )


def _is_own(name: str) -> bool:
    return name.startswith(f"{INSTANCE}-")


def _names(directory: Path) -> Iterator[str]:
    """Give the sockets of this plugin's instances, dead or alive; none if the directory is gone."""
    with suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - names are all that is wanted
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                yield name


class SocketServer:
    """Serves `services` at `path`; `identity` is the socket's from the start on."""

    def __init__(self, path: Path, services: Services) -> None:
        self.path = path
        self.identity: Identity | None = None
        self._services = services
        self._server: aio.Server | None = None
        self._started: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Serve the socket; raises OSError if it cannot be made."""
        check_descriptors()
        server = self._server = aio.server()
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, methods)
                for name, methods in self._services.items()
            )
        )
        try:
            server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:  # grpcio says no more than that
            raise OSError(f"cannot listen on {self.path}: is the directory there and writable?") from error
        self._started = asyncio.ensure_future(server.start())
        if not await waiting.ends(self._started, _START_SECONDS):
            raise OSError(f"cannot listen on {self.path}: gRPC does not start")
        self.identity = Identity.of(self.path)

    async def stop(self) -> None:
        """Let running calls finish, remove the socket: in two seconds at most."""
        try:
            await waiting.ends(self._stop(), _STOP_SECONDS)
        finally:
            with suppress(OSError):  # gone with its directory, or removed by gRPC
                self.path.unlink()

    async def _stop(self) -> None:
        # A cancellation is kept away from both: a server that was cancelled while it started cannot be
        # stopped, and gRPC's own waiting for running calls can drop one.
        if self._started:
            await self._started
        if self._server:
            await self._server.stop(_GRACE_SECONDS)
