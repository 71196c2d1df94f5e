# SPDX-License-Identifier: Apache-2.0
"""The module that tries a join token, against a server over TLS with real certificates.

The CAs are those that a cluster may have: K3s' own, an organisation's, and what its script for rotation makes
(contrib/util/rotate-default-ca-certs.sh).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles import playing
from tests.unit.roles.certs import Pair, authority
from tests.unit.roles.conftest import Serve
from tests.unit.roles.fake_k3s import Server, basic
from tests.unit.roles.loading import load

token = load("k3s/library/k3s_join_token.py")
ca = load("k3s/module_utils/k3s_ca.py")

PASSWORD, EXPIRING = "the-password", "q4bjus.7k1x6b1fz0d72prp"


def file_hash(pem: bytes) -> str:
    return hashlib.sha256(pem).hexdigest()


@dataclass
class Case:
    """What a server gives at /cacerts, the CA of its own certificate, and the hash that K3s makes of it."""

    bundle: bytes
    serving: Pair
    hash: str


def cases() -> dict[str, Case]:
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
    crossed = authority(new_root.name, own, new_root.key).pem
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


@pytest.fixture
def server(request: pytest.FixtureRequest, serve: Serve) -> Server:
    case: Case = request.param
    return Server(case.serving, case.bundle, (basic(PASSWORD), f"Bearer {EXPIRING}")).start(serve)


@pytest.mark.parametrize(
    "bundle",
    [
        b"<html>a captive portal</html>",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nnot base64\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_bundle_is_said_to_be_none(bundle: bytes) -> None:
    with pytest.raises(ca.CaError):
        ca.bundle_hash(bundle)


@pytest.mark.parametrize("server", CASES.values(), ids=CASES, indirect=True)
def test_short_token_gets_the_hash_and_is_accepted_with_it(
    server: Server, request: pytest.FixtureRequest
) -> None:
    case = CASES[request.node.callspec.id]
    ca = case.bundle.decode()
    for given, as_server, written in (
        (PASSWORD, False, f"node:{PASSWORD}"),
        (PASSWORD, True, f"server:{PASSWORD}"),
        (EXPIRING, False, EXPIRING),
    ):
        full = token.complete(given, ca, as_server)
        assert full == f"K10{case.hash}::{written}"
        assert token.complete(full, ca, as_server) == full
        token.verify(server.url, ca, full, 10)


@pytest.mark.parametrize("server", [CASES["organisation"]], indirect=True)
@pytest.mark.parametrize(
    ("given", "words"),
    [("another-password", "HTTP 401"), ("aaaaaa.bbbbbbbbbbbbbbbb", "may have expired")],
    ids=["password", "expired"],
)
def test_wrong_token_is_refused(server: Server, given: str, words: str) -> None:
    with pytest.raises(token.TokenError, match=words) as caught:
        token.verify(server.url, server.bundle.decode(), given, 10)
    assert caught.value.reason == "refused"


def test_token_of_another_cluster_is_refused_without_a_request() -> None:
    case = CASES["organisation"]
    # What the hash was before: that of the file.
    given = f"K10{file_hash(case.bundle)}::node:{PASSWORD}"
    with pytest.raises(token.TokenError, match="another cluster") as caught:
        token.complete(given, case.bundle.decode(), False)
    assert caught.value.reason == "other-ca"


@pytest.mark.parametrize("ca", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nx\n", "ü"])
def test_a_ca_file_without_a_certificate_is_no_way_around(ca: str) -> None:
    with pytest.raises(token.TokenError, match="the server's CA file has no certificate"):
        token.complete(PASSWORD, ca, False)


def outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **params: Any) -> dict[str, Any]:
    places = {"path": str(tmp_path / "token"), "marker": str(tmp_path / "marker")}
    given = {"server_url": None, "ca": None, "first": "", "server": False, **places, **params}
    return playing.outcome(monkeypatch, token, given)


@pytest.mark.parametrize("given", [EXPIRING, f"K10{CASES['own'].hash}::{EXPIRING}"], ids=["short", "full"])
def test_expiring_token_is_for_agents_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    result = outcome(monkeypatch, tmp_path, token=given, server=True)
    assert (result["failed"], result["reason"]) == (True, "malformed")
    assert "from agents only" in result["msg"]
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize("server", [CASES["own"]], indirect=True)
def test_expired_token_of_a_node_that_has_joined_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    expired = "aaaaaa.bbbbbbbbbbbbbbbb"
    certificate = tmp_path / "client-kubelet.crt"
    monkeypatch.setattr(token.has_joined_with, "__defaults__", (str(certificate),))
    (tmp_path / "token").write_text(f"K10{CASES['own'].hash}::{expired}\n")
    at = {"server_url": server.url, "ca": server.bundle.decode()}
    assert outcome(monkeypatch, tmp_path, **at, token=expired)["reason"] == "refused"
    certificate.touch()
    assert outcome(monkeypatch, tmp_path, **at, token=expired) == {
        "changed": False,
        "restart_due": False,
    }
    # Another token, or a password, is not excused by that.
    for other in ("cccccc.bbbbbbbbbbbbbbbb", "another-password"):
        assert outcome(monkeypatch, tmp_path, **at, token=other)["reason"] == "refused"
