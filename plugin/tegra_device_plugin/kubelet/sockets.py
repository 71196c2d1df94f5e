# SPDX-License-Identifier: Apache-2.0
"""The kubelet's directory of plugin sockets: names, instances that serve there, stale sockets."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc import aio

from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import Identity

KUBELET_SOCKET = "kubelet.sock"
READY_SOCKET = "tegra-device-plugin-ready.sock"  # a kubelet that starts removes it
MAX_SOCKET_PATH = 107  # bytes; sockaddr_un.sun_path without its NUL

_PREFIX = "tegra-gpu-"
_SUFFIX = ".sock"

# Before the start time in the names of a standby instance. It sorts before every time.
_STANDBY = "-stand-by-"
_LONGEST_NAME = f"{_PREFIX}{_STANDBY}{2**64 - 1:016x}-{10**9}{_SUFFIX}"

# Deadlines: a start takes milliseconds; at the stop, for running calls and for all.
_START_SECONDS = 5.0
_GRACE_SECONDS = 1.0
_STOP_SECONDS = 2.0

_SPARE_DESCRIPTORS = 16  # gRPC 1.85 takes 7 for its first channel

Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"
"""Handlers by the name of their method."""
Services: TypeAlias = "Mapping[str, Handlers]"
"""Handlers by the full name of their service."""

logger = logging.getLogger(__name__)


def unary(method: Callable[..., Any], request: Any, response: Any) -> grpc.RpcMethodHandler[Any, Any]:
    """Give the handler of a method, with the classes of its messages."""
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, response.SerializeToString)


def check_descriptors() -> None:
    """Raise OSError unless gRPC finds the descriptors that it needs: without them it aborts the process."""
    spare: list[int] = []
    try:
        while len(spare) < _SPARE_DESCRIPTORS:
            spare.append(os.eventfd(0))
    finally:
        for descriptor in spare:
            os.close(descriptor)


class Instance:
    """Name of this process among the instances of the plugin on a board: the last of them by name serves.

    A name has the start time of its process, so a newer instance goes first, and a standby last. The
    time is since the boot: a Jetson without a battery has a wrong clock until NTP sets it.
    """

    def __init__(self, *, standby: bool = False) -> None:
        self.standby = standby
        started = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._name = f"{_PREFIX}{_STANDBY if standby else ''}{started:016x}"
        self._numbers = itertools.count()

    def new_socket(self) -> str:
        """Give a socket's name that is new: newer kubelets do not dial a known path at Register."""
        return f"{self._name}-{next(self._numbers)}{_SUFFIX}"

    def others(self, directory: Path) -> dict[str, bool]:
        """Give the sockets of other instances in `directory`, each with True if the instance serves there."""
        # Own sockets are left out: each probe would cost a connection of the gRPC server.
        own = f"{self._name}-"
        return {name: accepts(directory / name) for name in _names(directory) if not name.startswith(own)}

    def yields_to(self, other: str) -> bool:
        """True if the instance with this socket goes first."""
        return other > self._name


def foreign(directory: Path) -> dict[str, bool]:
    """Give the sockets of other projects' plugins in `directory`, each with True if one serves there."""
    found: dict[str, bool] = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            own = entry.name.startswith(_PREFIX) or entry.name in (KUBELET_SOCKET, READY_SOCKET)
            with suppress(OSError):  # gone again
                if not own and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    found[entry.name] = accepts(Path(entry.path))
    return found


class Readiness:
    """Shows other processes that this instance could serve a kubelet now: it listens on a socket."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / READY_SOCKET
        self._socket: socket.socket | None = None

    def show(self, ready: bool) -> None:
        """Listen while `ready`."""
        if not ready:
            self.close()
        elif self._socket is None:
            listener = socket.socket(socket.AF_UNIX)
            try:
                self._path.unlink(missing_ok=True)  # of an instance that was killed
                listener.bind(str(self._path))
                listener.listen()
            except OSError as error:
                listener.close()
                logger.warning("cannot show at %s that this instance is ready: %s", self._path, error)
            else:
                self._socket = listener

    def close(self) -> None:
        """Listen no longer."""
        if self._socket:
            with suppress(OSError):
                self._path.unlink()
            self._socket.close()
            self._socket = None


def serving(directory: Path) -> frozenset[str]:
    """Names of the sockets in `directory` on which instances of this plugin serve."""
    return frozenset(name for name in _names(directory) if accepts(directory / name))


def sweep(directory: Path) -> None:
    """Remove the sockets of killed instances: no process listens there."""
    for name in _names(directory):
        if not accepts(directory / name):
            with suppress(OSError):
                (directory / name).unlink()
                logger.info("removed the stale socket %s", name)


def accepts(path: Path) -> bool:
    """True if a process listens on the unix socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:  # the queue is full: a process listens
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


def _names(directory: Path) -> Iterator[str]:
    """Give the sockets of this plugin's instances, with or without a listener; none without the directory."""
    with suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 - only names are needed
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                yield name


class SocketServer:
    """Serves `services` at `path`; `identity` is the socket's, after the start."""

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
        except RuntimeError as error:  # grpcio gives no details
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
            with suppress(OSError):  # removed by gRPC, or with its directory
                self.path.unlink()

    async def _stop(self) -> None:
        # Neither is cancelled: a server that was cancelled during its start cannot be stopped, and gRPC's own
        # wait for running calls can drop a cancellation.
        if self._started:
            await self._started
        if self._server:
            await self._server.stop(_GRACE_SECONDS)
