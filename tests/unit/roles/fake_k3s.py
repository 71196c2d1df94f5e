# SPDX-License-Identifier: Apache-2.0
"""SIMULATED: a K3s server over TLS, which gives its CAs, knows tokens, and changes its own."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.unit.roles.certs import Pair, certificate
from tests.unit.roles.conftest import Serve


def basic(password: str, user: str = "node") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@dataclass
class Server:
    """A server whose certificate is by `ca`. It has /cacerts for everybody, all else for who is accepted."""

    ca: Pair
    bundle: bytes
    accepted: tuple[str, ...] = ()
    moved_to: str = ""
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """All that it was sent: request lines and headers."""

    def start(self, serve: Serve) -> Server:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(f"{self.requestline}\n{self.headers}")
                known = self.headers.get("Authorization") in server.accepted
                status = 302 if server.moved_to else 200 if self.path == "/cacerts" or known else 401
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if known and self.command == "PUT":
                    status = server.put(self.path, body)
                self.send_response(status)
                self.send_header("Location", server.moved_to)
                self.end_headers()
                self.wfile.write(server.bundle)

            do_PUT = do_GET  # noqa: N815 - the base class' names

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.url = serve(Handler, certificate("k3s", self.ca))
        return self

    def put(self, path: str, body: bytes) -> int:
        return 405
