# SPDX-License-Identifier: Apache-2.0
"""A simulated kubelet for who asks it which container holds which device."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc


class Kubelet:
    """A SIMULATED kubelet. It knows what is allocatable only if it is told."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.answer = b""
        self.allocatable: bytes | grpc.StatusCode = grpc.StatusCode.UNIMPLEMENTED
        self.refuses = False
        self.asked = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(1))
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "List": grpc.unary_unary_rpc_method_handler(self._list),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._get_allocatable),
        }
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
        )
        self.server.add_insecure_port(f"unix:{socket}")
        self.server.start()

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        self.asked += 1
        if self.refuses:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such feature")
        return self.answer

    def _get_allocatable(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        if isinstance(self.allocatable, grpc.StatusCode):
            context.abort(self.allocatable, "no such feature")
        return self.allocatable


@contextmanager
def running_kubelet() -> Iterator[Kubelet]:
    """A kubelet; pytest's own directories are too long for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp") as directory:
        one = Kubelet(Path(directory, "kubelet.sock"))
        yield one
        one.server.stop(None).wait()
