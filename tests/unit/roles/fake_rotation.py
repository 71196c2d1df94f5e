# SPDX-License-Identifier: Apache-2.0
"""SIMULATED: what a K3s server does when its token or its CAs are changed (its pkg/server/handlers)."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import subprocess
import tempfile
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.unit.roles import certs
from tests.unit.roles.certs import Pair

# Below server/tls, what `k3s certificate rotate-ca` takes (pkg/daemons/config/types.go).
CA_FILES = (
    "server-ca.crt", "server-ca.key", "client-ca.crt", "client-ca.key",
    "etcd/server-ca.crt", "etcd/server-ca.key", "etcd/peer-ca.crt", "etcd/peer-ca.key", "service.key",
)  # fmt: skip


def ca_hash(bundle: bytes) -> str:
    """Return the hash of a server's CA bundle as a token carries it: SHA-256 in hex.

    Of several certificates it is that of the root to which the first one leads, as DER
    (pkg/clientaccess/token.go).
    """
    first, *others = certs.split(bundle)
    for root in others:
        if certs.leads_to(first, root, bundle):
            return hashlib.sha256(ssl.PEM_cert_to_DER_cert(root.decode())).hexdigest()
    return hashlib.sha256(bundle).hexdigest()


def token(bundle: bytes, password: str) -> str:
    """Return a server's token in its full form, with the newline its file ends with."""
    return f"K10{ca_hash(bundle)}::server:{password}\n"


class RefusedError(Exception):
    """K3s does not take the CAs."""


class Server:
    """A server whose files are below `directory`, and which runs with `password`."""

    def __init__(self, directory: Path, password: str) -> None:
        self.directory, self.password = directory, password
        self.tls = directory / "server/tls"
        self.token_file = directory / "server/token"
        self.ca = certs.authority(self.tls, "server-ca")
        self.client_ca = certs.authority(self.tls, "client-ca")
        key = certs.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout")
        (self.tls / "service.key").write_bytes(key)
        self._waiting: dict[str, bytes] = {}
        self.start()

    def start(self) -> None:
        """Use what was brought since, as a start of K3s does."""
        for name, content in self._waiting.items():
            (self.tls / name).write_bytes(content)
        self._waiting = {}
        self.token_file.write_text(token(self.ca.cert.read_bytes(), self.password))

    def serving(self) -> Pair:
        """Return a certificate of the server, signed by its present CA."""
        return certs.certificate(self.directory, "serving", self.ca, "127.0.0.1")

    def serve(self) -> str:
        """Answer until the process ends, with a certificate of the present CA; return the URL."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(server.put(self.path, self.headers.get("Authorization", ""), body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        context, serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.serving()
        context.load_cert_chain(serving.cert, serving.key)
        listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        listening.daemon_threads = True
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        return f"https://127.0.0.1:{listening.server_port}"

    def put(self, path: str, authorization: str, body: bytes) -> HTTPStatus:
        """Change the token: in the file at once, for nodes at the next start."""
        known = base64.b64encode(f"server:{self.password}".encode()).decode()
        if path != "/v1-k3s/token" or authorization != f"Basic {known}":
            return HTTPStatus.UNAUTHORIZED
        password = json.loads(body)["newToken"] or secrets.token_hex(16)
        self.token_file.write_text(token(self.ca.cert.read_bytes(), password))
        return HTTPStatus.OK

    def rotate_ca(self, path: Path) -> None:
        """Keep the CAs below `path` until the next start. Raises RefusedError for what would not work."""
        new = {name: path / "tls" / name for name in CA_FILES if (path / "tls" / name).exists()}
        for name in ("server-ca", "client-ca", "etcd/server-ca", "etcd/peer-ca"):
            if f"{name}.crt" in new:
                check(
                    name,
                    (self.tls / f"{name}.crt").read_bytes(),
                    Pair(new[f"{name}.crt"], new[f"{name}.key"]),
                )
        if (self.tls / "service.key").read_bytes() not in new["service.key"].read_bytes():
            raise RefusedError("old ServiceAccount signing key not in new ServiceAccount key list")
        self._waiting = {name: file.read_bytes() for name, file in new.items()}


def check(name: str, old: bytes, new: Pair) -> None:
    """Refuse a CA that those who trust the old one do not trust, or whose key is another one."""
    found = certs.split(new.cert.read_bytes())
    if len(found) < 2:
        raise RefusedError(
            f"{name}: new CA bundle contains only a single certificate but should include root or "
            "intermediate CA certificates"
        )
    # OpenSSL would end at a new root; K3s passes it over.
    between = b"".join(one for one in found if not certs.leads_to(one, one, one))
    if not certs.leads_to(found[0], old, between):
        raise RefusedError(f"{name}: new CA cert cannot be verified using old CA chain")
    with tempfile.NamedTemporaryFile() as first:
        first.write(found[0])
        first.flush()
        public = certs.openssl("x509", "-noout", "-pubkey", "-in", first.name)
    loaded = subprocess.run(["openssl", "pkey", "-pubout", "-in", new.key], capture_output=True, check=False)
    if loaded.stdout != public:
        raise RefusedError(f"{name}: new CA cert and key cannot be loaded as X590KeyPair")
