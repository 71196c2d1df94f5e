# SPDX-License-Identifier: Apache-2.0
"""Joining: the stand-in's endpoint and its client against each other, over TLS on loopback."""

import json
import ssl
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab.k3s_standin import certs, membership, rotation, supervisor, tokens
from tests.lab.k3s_standin.api import Api, ApiError
from tests.lab.k3s_standin.errors import StandinError

SECRET = "/api/v1/namespaces/kube-system/secrets/board.node-password.k3s"


class FakeApi(Api):
    """An API server that keeps Secrets in memory, and may be unready."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, object]] = {}
        self.reachable = True

    def get(self, path: str) -> object:
        if not self.reachable:
            raise ConnectionRefusedError("connection refused")
        return self.objects.get(path)

    def call(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> bytes:
        assert method == "POST"
        assert isinstance(body, dict)
        name = f"{path}/{body['metadata']['name']}"
        if name in self.objects:
            raise ApiError(409, "already exists")
        self.objects[name] = body
        return json.dumps(body).encode()


@dataclass
class Server:
    """A running endpoint and a node's view of it."""

    directory: Path
    cluster: supervisor.Cluster
    api: FakeApi
    port: int
    ca_pem: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.ca_pem = self.cluster.server_ca.cert.read_bytes()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def join(self, token: str, node: str = "board") -> membership.Membership:
        where = self.directory / "agent"
        return membership.join_once(self.url, tokens.parse(token), node, "10.0.0.7", where)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Start the endpoint on a free port; node passwords go below tmp_path."""
    monkeypatch.setattr(membership, "NODE_PASSWORD_FILE", tmp_path / "password")
    server_ca = certs.authority(tmp_path, "server-ca")
    client_ca = certs.authority(tmp_path, "client-ca")
    serving = certs.certificate(tmp_path, "serving", server_ca, certs.Subject("k3s", hosts=("127.0.0.1",)))
    api = FakeApi()
    passwords = {"server": "admin", "node": "secret"}
    cluster = supervisor.Cluster(server_ca, client_ca, passwords, api, tmp_path / "server" / "token")
    return Server(tmp_path, cluster, api, supervisor.serve(cluster, serving, "127.0.0.1", 0))


def described(cert: Path) -> str:
    """Return a certificate's subject and names as openssl shows them."""
    show = ["openssl", "x509", "-noout", "-subject", "-ext", "subjectAltName,extendedKeyUsage"]
    return subprocess.run([*show, "-in", str(cert)], capture_output=True, text=True, check=True).stdout


def test_a_node_that_knows_the_token_gets_its_credentials(server: Server) -> None:
    member = server.join(tokens.full(server.ca_pem, "node", "secret"))
    client, serving = described(member.client.cert), described(member.serving.cert)
    assert "O = system:nodes, CN = system:node:board" in client
    assert "TLS Web Client Authentication" in client
    assert "DNS:board, IP Address:10.0.0.7" in serving
    for pair, ca in ((member.client, member.client_ca), (member.serving, member.server_ca)):
        subprocess.run(["openssl", "verify", "-CAfile", ca, pair.cert], check=True, capture_output=True)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair.cert, pair.key)
        assert pair.key.stat().st_mode & 0o777 == 0o600


def test_a_wrong_token_is_refused_at_once(server: Server) -> None:
    with pytest.raises(StandinError, match="the server refused the token"):
        server.join(tokens.full(server.ca_pem, "node", "wrong"))
    assert not server.api.objects


def test_a_token_of_another_cluster_is_refused_before_it_is_sent(server: Server) -> None:
    with pytest.raises(StandinError, match="token CA hash does not match"):
        server.join(tokens.full(b"another CA", "node", "secret"))
    assert not server.api.objects


def test_the_short_token_trusts_on_first_use_and_warns(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.join("secret")
    assert "does not include a CA hash" in caplog.text


def test_a_host_keeps_its_name_and_another_host_does_not_get_it(server: Server) -> None:
    server.join("secret")
    server.join("secret")
    (server.directory / "password").write_text("another host")
    with pytest.raises(StandinError, match="403: Node password rejected, duplicate hostname"):
        server.join("secret")
    server.join("secret", node="other")


def test_the_node_password_is_kept_hashed(server: Server) -> None:
    server.join("secret")
    assert (server.directory / "password").read_text().strip() not in json.dumps(server.api.objects[SECRET])
    assert server.api.objects[SECRET]["immutable"] is True


def test_an_api_server_that_is_not_ready_makes_the_node_wait(server: Server) -> None:
    server.api.reachable = False
    with pytest.raises(membership.NotReady, match="server is not ready"):
        server.join("secret")
    server.api.reachable = True
    server.join("secret")


def test_a_server_that_is_not_there_makes_the_node_wait(tmp_path: Path) -> None:
    with pytest.raises(membership.NotReady, match="refused"):
        membership.join_once("https://127.0.0.1:1", tokens.Token("x"), "board", "10.0.0.7", tmp_path)


def test_an_address_that_the_certificate_lacks_is_named(server: Server) -> None:
    with pytest.raises(StandinError, match="add that to its tls-san"):
        membership.join_once(
            f"https://localhost:{server.port}",
            tokens.Token("secret"),
            "board",
            "10.0.0.7",
            server.directory,
        )


@pytest.mark.parametrize("node", ["", "a/CN=root", "UPPER", "-a", "a" * 300])
def test_a_name_that_is_no_node_name_is_refused(server: Server, node: str) -> None:
    with pytest.raises(StandinError, match="400"):
        server.join("secret", node=node)


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/ping", "", 200),
        ("/cacerts", "", 200),
        ("/v1-k3s/client-ca.crt", tokens.basic_auth("node", "secret"), 200),
        ("/v1-k3s/client-ca.crt", tokens.basic_auth("server", "admin"), 200),
        ("/v1-k3s/client-ca.crt", tokens.basic_auth("node", "admin"), 401),
        ("/v1-k3s/client-ca.crt", tokens.basic_auth("root", "\0"), 401),
        ("/v1-k3s/client-ca.crt", "Basic ?", 401),
        ("/v1-k3s/client-ca.crt", "", 401),
        ("/v1-k3s/server-ca.key", tokens.basic_auth("server", "admin"), 401),
        ("/api/v1/nodes", "", 404),
    ],
)
def test_paths_are_open_to_those_who_may(server: Server, path: str, authorization: str, status: int) -> None:
    try:
        server.cluster.answer(path, {"authorization": authorization})
        got = 200
    except supervisor.Refused as refusal:
        got = refusal.status
    assert got == status


def test_certificates_are_kept_until_something_else_is_wanted(tmp_path: Path) -> None:
    ca = certs.authority(tmp_path, "ca")
    first = certs.certificate(tmp_path, "leaf", ca, certs.Subject("a", hosts=("h",))).cert.read_bytes()
    again = certs.certificate(tmp_path, "leaf", ca, certs.Subject("a", hosts=("h",))).cert.read_bytes()
    other = certs.certificate(tmp_path, "leaf", ca, certs.Subject("a", hosts=("h", "i"))).cert.read_bytes()
    assert certs.authority(tmp_path, "ca") == ca
    assert first == again
    assert first != other


def test_certificate_that_ends_soon_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(days: str) -> bytes:
        monkeypatch.setenv(certs.DAYS_VARIABLE, days)
        return certs.certificate(
            tmp_path, "leaf", certs.authority(tmp_path, "ca"), certs.Subject("a")
        ).cert.read_bytes()

    short = made("89")
    assert certs.ends_soon(tmp_path / "leaf.crt")
    long = made("")
    assert long != short
    assert made("30") == long, "one that is good for long is kept"


def rotate(server: Server, *arguments: str) -> str:
    """Change the token as on the server, and return the file's."""
    data_dir = server.directory
    rotation.rotate(["--server", server.url, "--data-dir", str(data_dir), *arguments])
    return tokens.parse((data_dir / "server" / "token").read_text()).password


def test_server_token_is_changed_for_the_next_start(server: Server) -> None:
    old = tokens.full(server.ca_pem, "server", "admin")
    server.cluster.token_file.parent.mkdir()
    server.cluster.token_file.write_text(old)
    assert rotate(server, "--new-token=fresh") == "fresh"
    assert server.cluster.token_file.stat().st_mode & 0o777 == 0o600
    # Until then the old one is the one that is taken.
    with pytest.raises(StandinError, match="401"):
        rotate(server)
    made = rotate(server, "--token", old)
    assert made not in ("admin", "fresh")
    assert len(made) == 32


def test_token_is_not_changed_by_who_may_only_join(server: Server) -> None:
    headers = {"authorization": tokens.basic_auth("node", "secret")}
    with pytest.raises(supervisor.Refused) as refused:
        server.cluster.put("/v1-k3s/token", headers, b'{"newToken": "mine"}')
    assert refused.value.status == 403
    assert not server.cluster.token_file.exists()
