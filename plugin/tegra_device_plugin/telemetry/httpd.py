# SPDX-License-Identifier: Apache-2.0
"""Read-only pages over HTTP/1.1, one request per connection, and the pages that all services have."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple

from tegra_device_plugin.system.mounts import StaleMountError
from tegra_device_plugin.telemetry.exposition import CONTENT_TYPE, Metric, exposition
from tegra_device_plugin.telemetry.process import process_metrics

_REQUEST_SECONDS = 5.0  # from connection to last byte
_REQUEST_BYTES = 8192
# At the same time. The kubelet's two probes and a pair of Prometheus servers need 4. Each connection takes a
# descriptor and up to 50 KiB.
_MAX_CONNECTIONS = 32
# By the event loop. The request of a new connection is read two iterations later, so a probe is answered
# before newer connections can make it the oldest of _MAX_CONNECTIONS.
_ACCEPTED_PER_ITERATION = 8
_LISTEN_BACKLOG = 128  # connections that wait in the kernel; beyond, a client tries again after a second
# Three times the longest time between two observations of the board and the sockets (health.POLL_SECONDS,
# registrar.REGISTER_SECONDS).
STUCK_SECONDS = 40.0


class Page(NamedTuple):
    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""The function that makes the page, by path."""


class StatusPages:
    """/metrics and /healthz of a command. Every answer is made at the request."""

    stuck_seconds = STUCK_SECONDS

    def __init__(self) -> None:
        self._since = asyncio.get_running_loop().time()

    def by_path(self) -> Pages:
        return {"/metrics": self.metrics, "/healthz": self.healthz}

    async def metrics(self) -> Page:
        metrics = [*await self._metrics(), *process_metrics()]
        return Page(exposition(metrics), content_type=CONTENT_TYPE)

    async def healthz(self) -> Page:
        """Fail when a loop is stuck or a mount is stale, so that the kubelet restarts the container.

        Until a loop's first observation, its age counts from the start.
        """
        try:
            self._check_mounts()
        except StaleMountError as error:
            return Page(f"{error}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        now = asyncio.get_running_loop().time()
        ages = {name: now - max(self._since, at) for name, at in self._observed_at().items()}
        stuck = [f"{name} for {age:.0f} s" for name, age in ages.items() if age > self.stuck_seconds]
        if stuck:
            return Page(f"stuck: {', '.join(stuck)}\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Page("ok\n")

    async def _metrics(self) -> Iterable[Metric]:
        raise NotImplementedError

    def _check_mounts(self) -> None:
        """Raise StaleMountError if a directory of the host was deleted under its mount."""

    def _observed_at(self) -> Mapping[str, float]:
        """Each loop's last observation, by the event loop's clock."""
        raise NotImplementedError


class _Connections:
    """The open connections, oldest first. Beyond the limit the oldest idle one is closed, else the oldest."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._answering: set[asyncio.Task[None]] = set()

    # Not a coroutine: of those, Python 3.11 prints a traceback when they are cancelled.
    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of a new connection."""
        if len(self._writers) >= _MAX_CONNECTIONS:
            idle = [task for task in self._writers if task not in self._answering]
            self._close((idle or list(self._writers))[0])
        task = asyncio.create_task(self._answer(reader, writer))
        self._writers[task] = writer
        task.add_done_callback(self._forget)

    async def close(self) -> None:
        tasks = list(self._writers)
        for task in tasks:
            self._close(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close(self, task: asyncio.Task[None]) -> None:
        _abort(self._writers.pop(task))  # here, too: a task that has not started is cancelled before its own
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._writers.pop(task, None)
        self._answering.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_REQUEST_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                    if task := asyncio.current_task():
                        self._answering.add(task)
                    writer.write(await _respond(request, self._pages))
                    writer.close()
                    await writer.wait_closed()  # all is sent
        finally:
            _abort(writer)


@asynccontextmanager
async def serving(host: str, port: int, pages: Pages) -> AsyncIterator[int]:
    """Serve `pages` by path; gives the port (chosen by the system for 0). Raises OSError if it is taken.

    At the end connections are closed, and clients are not waited for.
    """
    connections = _Connections(pages)
    server = await asyncio.start_server(
        connections.accept, host, port, limit=_REQUEST_BYTES, backlog=_ACCEPTED_PER_ITERATION
    )
    for listening in server.sockets:
        # asyncio has one number for both: its `backlog` is also what it accepts in one iteration.
        with socket.socket(fileno=os.dup(listening.fileno())) as duplicate:
            duplicate.listen(_LISTEN_BACKLOG)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()  # and no wait_closed: from Python 3.12 on it waits for the clients
        await connections.close()


def _abort(writer: asyncio.StreamWriter) -> None:
    # asyncio's transport has no event loop any more once it has sent the rest of a large page after `close`.
    with suppress(AttributeError):
        writer.transport.abort()


async def _respond(request: bytes, pages: Pages) -> bytes:
    method, _, rest = request.decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if method not in ("GET", "HEAD"):
        page = Page("only GET\n", HTTPStatus.METHOD_NOT_ALLOWED)
    elif path not in pages:
        page = Page(f"pages: {' '.join(pages)}\n", HTTPStatus.NOT_FOUND)
    else:
        page = await pages[path]()
    body = page.text.encode()
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
