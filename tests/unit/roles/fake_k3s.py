# SPDX-License-Identifier: Apache-2.0
"""CAs with real certificates, and a SIMULATED K3s server over TLS that keeps what it is sent."""

from __future__ import annotations

import base64
import datetime
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """A CA: its name, its key, and its certificate."""

    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()


def signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: Authority | None,
    *,
    ca: bool = True,
    key_ids: bool = True,
) -> x509.Certificate:
    """A certificate; by its own key without an issuer."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if key_ids:
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        ).add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    return builder.sign(by, hashes.SHA256())


def authority(name: str, issuer: Authority | None = None, *, key_ids: bool = True) -> Authority:
    """A new CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority(name, key, signed(name, key, issuer, key_ids=key_ids))


def basic(password: str) -> str:
    """The header by which a node sends a password."""
    return "Basic " + base64.b64encode(f"node:{password}".encode()).decode()


@dataclass
class Server:
    """A server that listens."""

    bundle: bytes
    accepted: tuple[str, ...]
    moved_to: str = ""
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """All that it was sent: request lines and headers."""


@contextmanager
def serving(
    directory: Path, by: Authority, bundle: bytes, accepted: tuple[str, ...] = (), moved_to: str = ""
) -> Iterator[Server]:
    """A server whose certificate is signed by a CA, with /cacerts for everybody and a file for nodes."""
    server = Server(bundle, accepted, moved_to)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(f"{self.requestline}\n{self.headers}")
            known = self.headers.get("Authorization") in server.accepted
            self.send_response(302 if server.moved_to else 200 if self.path == "/cacerts" or known else 401)
            self.send_header("Location", server.moved_to)
            self.end_headers()
            self.wfile.write(server.bundle)

        def log_message(self, *_: object) -> None:
            pass

    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    leaf = signed("k3s", key, by, ca=False).public_bytes(serialization.Encoding.PEM)
    (directory / "serving.pem").write_bytes(private + leaf)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "serving.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        server.url = f"https://127.0.0.1:{listening.server_port}"
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
