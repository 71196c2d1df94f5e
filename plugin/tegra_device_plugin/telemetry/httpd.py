# SPDX-License-Identifier: Apache-2.0
"""A few read-only pages over HTTP/1.1, one request per connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

_REQUEST_SECONDS = 5.0  # from connection to last byte
_REQUEST_BYTES = 8192
# Three times the longest pause of the loops that look at the board and at sockets (health.POLL_SECONDS,
# Pace.look, Pace.register).
STUCK_SECONDS = 40.0


@dataclass(frozen=True)
class Page:
    """An answer."""

    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""What makes the page, by path."""


@asynccontextmanager
async def serving(host: str, port: int, pages: Pages) -> AsyncIterator[int]:
    """Serve `pages` by path; gives the port (chosen by the system for 0). Raises OSError if it is taken.

    At the end clients are cut off, not waited for.
    """
    answers: set[asyncio.Task[None]] = set()

    # Not a coroutine: of those, Python 3.11 prints a traceback when they are cancelled.
    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_answer(reader, writer, pages))
        answers.add(task)
        task.add_done_callback(answers.discard)

    server = await asyncio.start_server(connected, host, port, limit=_REQUEST_BYTES)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()  # and no wait_closed: from Python 3.12 on it waits for the clients
        for task in answers:
            task.cancel()
        await asyncio.gather(*answers, return_exceptions=True)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pages: Pages) -> None:
    try:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _respond(request, pages))
                writer.close()
                await writer.wait_closed()  # all is sent
    finally:
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


def liveness_page(since: float, turned: Mapping[str, float], limit: float = STUCK_SECONDS) -> Page:
    """Fail when a loop has stopped turning: only a new start helps then.

    `turned` is when each loop has last turned, by the event loop's clock. Before its first turn, its time
    counts from `since`.
    """
    now = asyncio.get_running_loop().time()
    ages = {name: now - max(since, at) for name, at in turned.items()}
    stuck = [f"{name} for {age:.0f} s" for name, age in ages.items() if age > limit]
    if stuck:
        return Page(f"stuck: {', '.join(stuck)}\n", HTTPStatus.SERVICE_UNAVAILABLE)
    return Page("ok\n")
