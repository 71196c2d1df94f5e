# SPDX-License-Identifier: Apache-2.0
"""Other CAs for the stand-in: what it refuses, as K3s does, and what its next start makes of them."""

import base64
import json
from pathlib import Path

import pytest

from tests.lab.k3s_standin import bootstrap, certs, config, server, supervisor, tokens
from tests.lab.k3s_standin.errors import StandinError

Asked = dict[str, bytes]


@pytest.fixture
def identity(tmp_path: Path) -> server.Identity:
    """A server that has started once."""
    return start(tmp_path)


def start(data_dir: Path) -> server.Identity:
    """Start a server."""
    flags = ["--docker", "--data-dir", str(data_dir), "--node-name", "board"]
    return server.establish(config.load("server", flags, {}, data_dir / "none"), "10.0.0.1")


def below(root: certs.Pair, name: str) -> certs.Pair:
    """A CA that another one has signed."""
    key, request, extensions = (root.key.with_name(f"{name}.{kind}") for kind in ("key", "csr", "ext"))
    extensions.write_text("basicConstraints=critical,CA:TRUE\n")
    certs.openssl("req", "-new", *certs.NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    cert = certs.openssl(
        "x509", "-req", "-in", request, "-CA", root.cert, "-CAkey", root.key, "-set_serial", "2",
        "-extfile", extensions,
    )  # fmt: skip
    key.with_suffix(".crt").write_bytes(cert)
    return certs.Pair(key.with_suffix(".crt"), key)


def good(identity: server.Identity) -> Asked:
    """A CA below the present one, and that behind it."""
    new = below(identity.server_ca, "next")
    return {
        "ServerCA": new.cert.read_bytes() + identity.server_ca.cert.read_bytes(),
        "ServerCAKey": new.key.read_bytes(),
    }


def ask(identity: server.Identity, asked: Asked, force: bool = False) -> None:
    """Ask the server for them."""
    body = {field: {"Content": base64.b64encode(content).decode()} for field, content in asked.items()}
    bootstrap.save(identity.server_ca.cert.parent, json.dumps(body).encode(), force)


def test_next_start_uses_them_and_issues_all_anew(tmp_path: Path, identity: server.Identity) -> None:
    before, client_ca = identity.serving.cert.read_bytes(), identity.client_ca.cert.read_bytes()
    asked, old_token = good(identity), (tmp_path / "server/token").read_text()
    root = identity.server_ca.cert.read_bytes()
    ask(identity, asked)
    assert identity.server_ca.cert.read_bytes() == root, "not before"
    after = start(tmp_path)
    assert after.server_ca.cert.read_bytes() == asked["ServerCA"]
    assert after.server_ca.key.stat().st_mode & 0o777 == 0o600
    assert after.client_ca.cert.read_bytes() == client_ca
    served = after.serving.cert.read_bytes()
    assert served != before
    assert served.endswith(asked["ServerCA"]), "it is served with its CAs"
    token = tokens.parse((tmp_path / "server/token").read_text())
    assert token.password == tokens.parse(old_token).password
    assert token.ca_hash == tokens.ca_hash(asked["ServerCA"]) != tokens.parse(old_token).ca_hash
    assert not bootstrap.waiting(after.server_ca.cert.parent).exists()


def test_controller_manager_gets_one_certificate(identity: server.Identity) -> None:
    assert len(certs.split(server.signing_ca(identity.client_ca).read_bytes())) == 1


def test_bundle_is_known_by_its_root_and_one_certificate_by_its_file(identity: server.Identity) -> None:
    one, other = (good(identity)["ServerCA"] for _ in range(2))
    assert one != other
    assert tokens.ca_hash(one) == tokens.ca_hash(other)
    assert tokens.ca_hash(identity.server_ca.cert.read_bytes()) != tokens.ca_hash(one)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("alone", "contains only a single certificate"),
        ("foreign", "cannot be verified using old CA chain"),
        ("key", "cannot be loaded"),
        ("service", "old ServiceAccount signing key not in"),
        ("nonsense", "not a request for other CAs"),
    ],
)
def test_what_would_not_work_is_refused_unless_it_is_forced(
    tmp_path: Path, identity: server.Identity, case: str, words: str
) -> None:
    asked = good(identity)
    if case == "alone":
        asked["ServerCA"] = certs.split(asked["ServerCA"])[0]
    elif case == "foreign":
        other = certs.authority(tmp_path / "other", "server-ca")
        new = below(other, "foreign")
        asked = {
            "ServerCA": new.cert.read_bytes() + other.cert.read_bytes(),
            "ServerCAKey": new.key.read_bytes(),
        }
    elif case == "key":
        asked["ServerCAKey"] = identity.server_ca.key.read_bytes()
    elif case == "service":
        asked["ServiceKey"] = identity.client_ca.key.read_bytes()
    else:
        asked["Nonsense"] = b""
    with pytest.raises(StandinError, match=words):
        ask(identity, asked)
    waiting = bootstrap.waiting(identity.server_ca.cert.parent)
    assert not waiting.exists()
    if case != "nonsense":
        ask(identity, asked, force=True)
        assert waiting.stat().st_mode & 0o777 == 0o600


def test_who_may_only_join_changes_no_ca(tmp_path: Path, identity: server.Identity) -> None:
    cluster = supervisor.Cluster(
        identity.server_ca, identity.client_ca, identity.passwords, None, tmp_path / "server/token"  # type: ignore[arg-type]
    )  # fmt: skip
    headers = {"authorization": tokens.basic_auth("node", identity.passwords["node"])}
    with pytest.raises(supervisor.Refused) as refused:
        cluster.put("/v1-k3s/cert/cacerts?force=false", headers, b"{}")
    assert refused.value.status == 403
