# SPDX-License-Identifier: Apache-2.0
"""A gRPC server on a unix socket, which starts, ends and leaves nothing behind, all in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc import aio

from tegra_device_plugin.system import waiting
from tegra_device_plugin.system.directorywatch import Identity

# A start takes milliseconds. An end: so long for the running calls, and so long for all of it.
_START_SECONDS = 5.0
_GRACE_SECONDS = 1.0
_STOP_SECONDS = 2.0

Services: TypeAlias = "Mapping[str, dict[str, grpc.RpcMethodHandler[Any, Any]]]"
"""Methods by name, by the full name of their service."""


class SocketServer:
    """Serves `services` at `path`; `identity` is the socket's from the start on."""

    def __init__(self, path: Path, services: Services) -> None:
        self.path = path
        self.identity: Identity | None = None
        self._started: asyncio.Future[None] | None = None
        self._server = aio.server()
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items())
        )

    async def start(self) -> None:
        """Serve the socket; raises OSError if it cannot be made."""
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:  # grpcio says no more than that
            raise OSError(f"cannot listen on {self.path}: is the directory there and writable?") from error
        self._started = asyncio.ensure_future(self._server.start())
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
        await self._server.stop(_GRACE_SECONDS)
