# SPDX-License-Identifier: Apache-2.0
"""Servers on this machine, and a key of the cluster's owner."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.acceptance.openpgp import keyring
from tests.unit.roles.certs import Pair

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """A function that starts an HTTPS server and returns its URL; it ends with the test."""
    with ExitStack() as ends:

        def start(handler: type[BaseHTTPRequestHandler], own: Pair, clients: Pair | None = None) -> str:
            """Answer with this certificate. `clients` is the CA of those who may show one."""
            directory = tmp_path_factory.mktemp("serving")
            own.write(directory, "own")
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(directory / "own.crt", directory / "own.key")
            if clients:
                context.load_verify_locations(cadata=clients.pem.decode())
                context.verify_mode = ssl.CERT_OPTIONAL
            server = ends.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            ends.callback(thread.join)
            ends.callback(server.shutdown)
            return f"https://127.0.0.1:{server.server_port}"

        yield start


@pytest.fixture(scope="session")
def key() -> Iterator[Path]:
    with keyring() as public:
        yield public
