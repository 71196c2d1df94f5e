# SPDX-License-Identifier: Apache-2.0
"""A few read-only pages over HTTP/1.1, one request per connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

_REQUEST_SECONDS = 5.0
_REQUEST_BYTES = 8192


@dataclass(frozen=True)
class Page:
    """An answer."""

    text: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


@asynccontextmanager
async def serving(host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> AsyncIterator[int]:
    """Serve `pages` by path; gives the port (chosen by the system for 0). Raises OSError if it is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_respond(request, pages))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _respond(request: bytes, pages: Mapping[str, Callable[[], Page]]) -> bytes:
    method, _, rest = request.decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if method not in ("GET", "HEAD"):
        page = Page("only GET\n", HTTPStatus.METHOD_NOT_ALLOWED)
    elif path not in pages:
        page = Page(f"pages: {' '.join(pages)}\n", HTTPStatus.NOT_FOUND)
    else:
        page = pages[path]()
    body = page.text.encode()
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
