# SPDX-License-Identifier: Apache-2.0
"""The server's own HTTPS endpoint, where nodes join: CA bundle, credentials, certificates.

Paths, headers and refusals are those of K3s (pkg/server/router.go). A kubelet's key is made here and handed
out with its certificate, over TLS, to a node that knew the token.
"""

import base64
import binascii
import json
import logging
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from . import bootstrap, certs, files, tokens
from .api import Api, ApiError
from .errors import StandinError
from .network import SUPERVISOR_PORT

log = logging.getLogger(__name__)

# A client that stalls costs one thread for this long.
TIMEOUT_SECONDS = 20.0
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
SECRETS = "/api/v1/namespaces/kube-system/secrets"
NODE_PASSWORD_REJECTED = (
    "Node password rejected, duplicate hostname or contents of '/etc/rancher/node/password' may not match "
    "server node-passwd entry, try enabling a unique node name with the --with-node-id flag"
)


class Refused(Exception):  # noqa: N818  (an answer, not an error: the protocol has it)
    """A request that is answered with a status other than 200."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Cluster:
    """What the endpoint hands out and checks against."""

    server_ca: certs.Pair
    client_ca: certs.Pair
    passwords: Mapping[str, str]  # user (`server` or `node`) to password
    api: Api
    token_file: Path

    def authenticate(self, authorization: str) -> str:
        """Return who asks: refused is whose Authorization header has not a known user and his password."""
        scheme, _, encoded = authorization.partition(" ")
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            user = password = ""
        wanted = self.passwords.get(user)
        if scheme != "Basic" or wanted is None or not tokens.same(password, wanted):
            raise Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized")
        return user

    def put(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Do what is asked at a path. Raises Refused.

        The server's token can be changed (K3s pkg/server/handlers/token.go). Where no new one is given, it is
        made here. The file has it at once, but who joins is asked for the old one until the next start.

        Its CAs can be changed (pkg/server/handlers/cert.go). It uses those from the next start on.
        """
        asked = urlsplit(path)
        if asked.path not in ("/v1-k3s/token", "/v1-k3s/cert/cacerts"):
            raise unknown()
        if self.authenticate(headers.get("authorization", "")) != "server":
            raise Refused(HTTPStatus.FORBIDDEN, "Forbidden")
        if asked.path == "/v1-k3s/cert/cacerts":
            try:
                bootstrap.save(self.server_ca.cert.parent, body, "force=true" in asked.query)
            except StandinError as error:
                log.warning("certificate error: %s", error)
                raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "certificate error") from error
            return b""
        try:
            password = str(json.loads(body)["newToken"]) or tokens.new_password()
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"not a token request: {error}") from error
        files.write(self.token_file, tokens.full(self.server_ca.cert.read_bytes(), "server", password))
        return b""

    def admit(self, node: str, password: str) -> None:
        """Refuse a node whose name belongs to another host, or that comes before the API server is ready.

        The first host that comes with a name gets it: its password's hash is kept as a Secret, as K3s does.
        """
        if not NODE_NAME.fullmatch(node):
            raise Refused(HTTPStatus.BAD_REQUEST, f"header K3s-Node-Name: {node!r} is not a node name")
        if not password:
            raise Refused(HTTPStatus.BAD_REQUEST, "header K3s-Node-Password is missing")
        name = f"{node}.node-password.k3s"
        try:
            secret = self.api.get(f"{SECRETS}/{name}")
            if secret is None:
                self.api.call("POST", SECRETS, password_secret(name, password))
                return
        except (OSError, ApiError) as error:
            # Also when two hosts came at the same moment: the second one asks again and is checked.
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, f"server is not ready: {error}") from error
        hashed = base64.b64decode(secret["data"]["hash"]).decode()
        if not tokens.verify_password(password, hashed):
            raise Refused(HTTPStatus.FORBIDDEN, NODE_PASSWORD_REJECTED)

    def answer(self, path: str, headers: Mapping[str, str]) -> bytes:
        """Return the content at a path; header names are in lower case. Raises Refused."""
        if path == "/ping":
            return b"pong"
        if path == "/cacerts":
            return self.server_ca.cert.read_bytes()
        if not path.startswith("/v1-k3s/"):
            raise Refused(HTTPStatus.NOT_FOUND, "not found; this stand-in has the Kubernetes API on 6444")
        self.authenticate(headers.get("authorization", ""))
        if path == "/v1-k3s/client-ca.crt":
            return self.client_ca.cert.read_bytes()
        node = headers.get("k3s-node-name", "")
        hosts = certs.distinct(node, headers.get("k3s-node-ip", ""), "localhost", "127.0.0.1")
        issued = {
            "/v1-k3s/client-kubelet.crt": (
                self.client_ca,
                certs.Subject(f"system:node:{node}", "system:nodes"),
            ),
            "/v1-k3s/serving-kubelet.crt": (self.server_ca, certs.Subject(node, hosts=hosts)),
            "/v1-k3s/client-kube-proxy.crt": (self.client_ca, certs.Subject("system:kube-proxy")),
        }
        if path not in issued:
            raise unknown()
        self.admit(node, headers.get("k3s-node-password", ""))
        return b"".join(certs.issue(*issued[path]))


def unknown() -> Refused:
    """Return the answer at a path that K3s hands on to Kubernetes' API server, which has no such user."""
    return Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized")


def password_secret(name: str, password: str) -> dict[str, object]:
    """Return the Secret that keeps a node's password."""
    hashed = base64.b64encode(tokens.hash_password(password).encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "immutable": True,
        "data": {"hash": hashed},
    }


def serve(cluster: Cluster, certificate: certs.Pair, address: str = "", port: int = SUPERVISOR_PORT) -> int:
    """Answer requests in the background, until the process ends, and return the port."""

    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_SECONDS

        def do_GET(self) -> None:
            self.reply(lambda headers: cluster.answer(self.path, headers))

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.reply(lambda headers: cluster.put(self.path, headers, body))

        def reply(self, answer: Callable[[Mapping[str, str]], bytes]) -> None:
            status = HTTPStatus.OK
            try:
                content = answer({name.lower(): value for name, value in self.headers.items()})
            except Refused as refusal:
                status, content = refusal.status, f"{refusal}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class' name)
            if getattr(self, "path", "") not in {"/ping", "/cacerts"}:
                log.info("%s %s", self.client_address[0], format % args)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            log.debug("request of %s failed", client_address, exc_info=True)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    try:
        server = Server((address, port), Handler)
    except OSError as error:
        raise StandinError(f"cannot listen on port {port}: {error.strerror}") from error
    # The handshake is left to each request's thread: a stalled client must not stop the others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True, name="supervisor").start()
    return int(server.server_address[1])
