# SPDX-License-Identifier: Apache-2.0
"""The module that tries a join token, against a server over TLS with real certificates.

The CAs are those that a cluster may have: K3s' own, an organisation's, and what its script for rotation makes
(contrib/util/rotate-default-ca-certs.sh).
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.unit.roles.conftest import Load

PASSWORD, EXPIRING = "the-password", "q4bjus.7k1x6b1fz0d72prp"
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """A CA: its name, its key, and its certificate by whoever has signed it."""

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


def file_hash(pem: bytes) -> str:
    return hashlib.sha256(pem).hexdigest()


@dataclass
class Case:
    """What a server gives at /cacerts, the CA of its own certificate, and the hash that K3s makes of it."""

    bundle: bytes
    serving: Authority
    hash: str


def cases() -> dict[str, Case]:
    """CAs that clusters have."""
    own = authority("k3s-server-ca@1")
    found = {"own": Case(own.pem, own, file_hash(own.pem))}

    root = authority("Example root")
    middle = authority("Example intermediate", root)
    issuing = authority("k3s-server-ca", middle)
    chain = issuing.pem + middle.pem + root.pem
    found["organisation"] = Case(chain, issuing, root.fingerprint)
    found["organisation, root first after its own"] = Case(
        issuing.pem + root.pem + middle.pem, issuing, root.fingerprint
    )

    plain_root = authority("Plain root", key_ids=False)
    plain = authority("k3s-server-ca", plain_root, key_ids=False)
    found["without key ids"] = Case(plain.pem + plain_root.pem, plain, plain_root.fingerprint)

    # K3s' script for rotation: a new intermediate CA, the new root by itself and by the old one, the old one.
    new_root = authority("k3s-server-root@2")
    crossed = signed(new_root.name, new_root.key, own).public_bytes(serialization.Encoding.PEM)
    new = authority("k3s-server-ca@2", new_root)
    found["rotated"] = Case(new.pem + new_root.pem + crossed + own.pem, new, new_root.fingerprint)
    # The server's certificate lives on until it is renewed.
    found["rotated, still served by the old"] = Case(found["rotated"].bundle, own, new_root.fingerprint)
    found["cross-signed alone"] = Case(new.pem + crossed + own.pem, new, own.fingerprint)

    # What leads to no root is hashed as the file: new beside old, and a root beside itself cross-signed.
    other = authority("k3s-server-ca@3")
    found["two of their own"] = Case(other.pem + own.pem, other, file_hash(other.pem + own.pem))
    itself = new_root.pem + crossed + own.pem
    found["root and its cross-signed self"] = Case(itself, new_root, file_hash(itself))
    return found


CASES = cases()


class K3s(BaseHTTPRequestHandler):
    """SIMULATED: /cacerts for everybody, a file for nodes."""

    bundle: bytes
    accepted: tuple[str, ...]

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") in self.accepted
        status = 200 if self.path == "/cacerts" or known else 401
        self.send_response(status)
        self.end_headers()
        self.wfile.write(self.bundle if status == 200 else b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def token(load: Load) -> ModuleType:
    return load("k3s/library/k3s_join_token.py")


@pytest.fixture
def ca(load: Load) -> ModuleType:
    return load("k3s/module_utils/k3s_ca.py")


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a server with the CAs of a case, which takes a password and an expiring token."""
    case: Case = request.param
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    leaf = signed("k3s", key, case.serving, ca=False).public_bytes(serialization.Encoding.PEM)
    (tmp_path / "serving.pem").write_bytes(private + leaf)
    basic = "Basic " + base64.b64encode(f"node:{PASSWORD}".encode()).decode()
    handler = type("Handler", (K3s,), {"bundle": case.bundle, "accepted": (basic, f"Bearer {EXPIRING}")})
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "serving.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_hash_is_that_of_k3s(ca: ModuleType, case: Case) -> None:
    assert ca.bundle_hash(case.bundle) == case.hash


@pytest.mark.parametrize(
    "bundle",
    [
        b"<html>a captive portal</html>",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nnot base64\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_bundle_is_said_to_be_none(ca: ModuleType, bundle: bytes) -> None:
    with pytest.raises(ca.CaError):
        ca.bundle_hash(bundle)


@pytest.mark.parametrize("url", CASES.values(), ids=CASES, indirect=True)
def test_short_token_gets_the_hash_and_is_accepted_with_it(
    token: ModuleType, url: str, request: pytest.FixtureRequest
) -> None:
    case = CASES[request.node.callspec.id]
    for given, written in ((PASSWORD, f"node:{PASSWORD}"), (EXPIRING, EXPIRING)):
        full = token.verify(url, given, 10)
        assert full == f"K10{case.hash}::{written}"
        assert token.verify(url, full, 10) == full


@pytest.mark.parametrize("url", [CASES["organisation"]], indirect=True)
@pytest.mark.parametrize(
    ("given", "reason", "words"),
    [
        ("another-password", "refused", "HTTP 401"),
        ("aaaaaa.bbbbbbbbbbbbbbbb", "refused", "may have expired"),
        # What the hash was before: that of the file.
        (f"K10{file_hash(CASES['organisation'].bundle)}::node:{PASSWORD}", "other-ca", "another cluster"),
    ],
    ids=["password", "expired", "other-ca"],
)
def test_wrong_token_is_refused(token: ModuleType, url: str, given: str, reason: str, words: str) -> None:
    with pytest.raises(token.TokenError, match=words) as caught:
        token.verify(url, given, 10)
    assert caught.value.reason == reason


@pytest.mark.parametrize("url", [Case(CASES["own"].bundle, CASES["rotated"].serving, "")], indirect=True)
def test_server_that_is_not_of_its_ca_never_gets_the_password(token: ModuleType, url: str) -> None:
    with pytest.raises(token.TokenError, match="certificate verify failed"):
        token.verify(url, PASSWORD, 10)


class EndedError(Exception):
    """The module has given its result."""


def outcome(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **params: Any
) -> dict[str, Any]:
    """What the module says."""

    def end(**result: Any) -> None:
        raise EndedError(result)

    given = {
        "path": str(tmp_path / "token"),
        "marker": str(tmp_path / "marker"),
        "timeout": 10,
        "server": False,
    }
    fake = SimpleNamespace(
        params={"server_url": None, **given, **params},
        check_mode=False,
        exit_json=end,
        fail_json=lambda **result: end(failed=True, **result),
    )
    monkeypatch.setattr(module, "AnsibleModule", lambda **_: fake)
    with pytest.raises(EndedError) as ended:
        module.main()
    result: dict[str, Any] = ended.value.args[0]
    return result


@pytest.mark.parametrize("given", [EXPIRING, f"K10{CASES['own'].hash}::{EXPIRING}"], ids=["short", "full"])
def test_expiring_token_is_for_agents_only(
    token: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    result = outcome(token, monkeypatch, tmp_path, token=given, server=True)
    assert (result["failed"], result["reason"]) == (True, "malformed")
    assert "from agents only" in result["msg"]
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize("url", [CASES["own"]], indirect=True)
def test_expired_token_of_a_node_that_has_joined_is_no_error(
    token: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    expired = "aaaaaa.bbbbbbbbbbbbbbbb"
    certificate = tmp_path / "client-kubelet.crt"
    monkeypatch.setattr(token.has_joined_with, "__defaults__", (str(certificate),))
    (tmp_path / "token").write_text(f"K10{CASES['own'].hash}::{expired}\n")
    asked = {"server_url": url, "token": expired}
    assert outcome(token, monkeypatch, tmp_path, **asked)["reason"] == "refused"
    certificate.touch()
    assert outcome(token, monkeypatch, tmp_path, **asked) == {"changed": False, "restart_due": False}
    # Another token, or a password, is not excused by that.
    for other in ("cccccc.bbbbbbbbbbbbbbbb", "another-password"):
        assert outcome(token, monkeypatch, tmp_path, server_url=url, token=other)["reason"] == "refused"
