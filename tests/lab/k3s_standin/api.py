# SPDX-License-Identifier: Apache-2.0
"""A client of the Kubernetes API for the few requests the stand-in makes itself."""

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib import error, request

from .certs import Pair
from .network import opener

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.3
LOOPBACK = request.build_opener(request.ProxyHandler({}))


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP status {status}: {message}")
        self.status = status


class Api:
    """One client's view of the API server."""

    def __init__(self, server: str, ca: Path, client: Pair) -> None:
        self._server = server
        context = ssl.create_default_context(cafile=str(ca))
        context.load_cert_chain(client.cert, client.key)
        self._opener = opener(context)

    def call(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> bytes:
        """Send a request and return the answer's body.

        Raises ApiError when the server refuses, OSError when it cannot be reached.
        """
        data = None if body is None else json.dumps(body).encode()
        asked = request.Request(  # noqa: S310  (the scheme is https, by construction)
            self._server + path, data, {"Content-Type": content_type}, method=method
        )
        try:
            with self._opener.open(asked, timeout=TIMEOUT_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except error.HTTPError as refusal:
            raise ApiError(refusal.code, refusal.read().decode(errors="replace")[:500]) from refusal

    def get(self, path: str) -> Any:
        """Return an object, None when there is none."""
        try:
            return json.loads(self.call("GET", path))
        except ApiError as refusal:
            if refusal.status == 404:
                return None
            raise

    def ready(self) -> bool:
        """Say whether the API server answers requests."""
        try:
            return self.call("GET", "/readyz") == b"ok"
        except (OSError, ApiError):
            return False

    def label_node(self, node: str, labels: dict[str, str]) -> None:
        """Merge labels into a node's."""
        patch = {"metadata": {"labels": labels}}
        self.call("PATCH", f"/api/v1/nodes/{node}", patch, "application/merge-patch+json")


def local_health(port: int) -> bool:
    """Say whether a Kubernetes program of this host is healthy, by its loopback health port."""
    try:
        with LOOPBACK.open(f"http://127.0.0.1:{port}/healthz", timeout=TIMEOUT_SECONDS) as answer:
            return bool(answer.read() == b"ok")
    except OSError:
        return False


async def until(healthy: Callable[[], bool]) -> None:
    """Wait until a program answers that it is healthy; it has no way to tell us by itself."""
    while True:
        if await asyncio.to_thread(healthy):
            return
        await asyncio.sleep(POLL_SECONDS)
