# SPDX-License-Identifier: Apache-2.0
"""A bare HTTP/2 client for unary gRPC calls over a unix socket: a few hundred bytes per call, no library.

A grpcio client costs about as much as the server it measures; this one costs a tenth. It knows just what a
gRPC server sends: no header is decoded, an answer is complete when its stream ends.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Self

# RFC 9113: frame types and flags.
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_ACK = _END_STREAM = 0x1
_END_HEADERS = 0x4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LARGEST_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = (1 << 16) - 1
_FRAME_HEAD = 9
_GRPC_HEAD = 5  # compressed flag and length before each message
# RFC 7541 appendix A: `:method: POST` and `:scheme: http` of the static table.
_POST_HTTP = b"\x83\x86"


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that is not put into the table (RFC 7541, 6.2.2), so that each call sends the same."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Connection:
    """One connection; calls one after the other."""

    def __init__(self, path: Path, method: str) -> None:
        """Connect to `path`; `method` is the full name that all calls go to."""
        self._headers = _POST_HTTP + b"".join(
            _literal(name, value)
            for name, value in (
                (b":path", method.encode()),
                (b":authority", b"localhost"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            )
        )
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.fspath(path))
        self._received = b""
        self._stream = 1
        window = struct.pack(">I", _LARGEST_WINDOW - _FIRST_WINDOW)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_WINDOW_UPDATE, 0, 0, window))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._socket.close()

    def call(self, message: bytes) -> bytes:
        """Send one message, give the answer (empty if the call failed). Raises ConnectionError."""
        stream = self._stream
        self._stream += 2
        body = b"\0" + struct.pack(">I", len(message)) + message
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, stream, self._headers) + _frame(_DATA, _END_STREAM, stream, body)
        )
        answer = b""
        while True:
            kind, flags, of_stream, payload = self._next_frame()
            if kind == _SETTINGS and not flags & _ACK:
                self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._socket.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY or (kind == _RST_STREAM and of_stream == stream):
                raise ConnectionError("the server gave up the call")
            elif of_stream == stream:
                answer += payload if kind == _DATA else b""
                if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                    return answer[_GRPC_HEAD:]

    def _next_frame(self) -> tuple[int, int, int, bytes]:
        self._fill(_FRAME_HEAD)
        end = _FRAME_HEAD + int.from_bytes(self._received[:3], "big")
        self._fill(end)
        head, payload = self._received[:_FRAME_HEAD], self._received[_FRAME_HEAD:end]
        self._received = self._received[end:]
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    def _fill(self, length: int) -> None:
        while len(self._received) < length:
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the server closed the connection")
            self._received += more
