# SPDX-License-Identifier: Apache-2.0
"""Tokens of K3s: how they are read and sent, how another one is set, and that no other computer gets one."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import k3s_token as k3s_tokens
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_join_token as join_token
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_token_rotation as rotation

from tests.unit.roles import certs, playing
from tests.unit.roles.certs import Pair, authority, certificate
from tests.unit.roles.conftest import Serve
from tests.unit.roles.places import Data
from tests.unit.roles.playing import Run, play_text


def basic(password: str, user: str = "node") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@dataclass
class Server:
    """SIMULATED: a K3s server with a certificate by `ca`, which answers those who are `accepted`."""

    ca: Pair
    accepted: tuple[str, ...] = ()
    moved_to: str = ""
    organization: str = "k3s"  # of its certificate
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """Received request lines and headers."""

    def start(self, serve: Serve) -> Server:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(f"{self.requestline}\n{self.headers}")
                known = self.path == "/ping" or self.headers.get("Authorization") in server.accepted
                status = 302 if server.moved_to else 200 if known else 401
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if known and self.command == "PUT":
                    status = server.put(self.path, body)
                self.send_response(status)
                self.send_header("Location", server.moved_to)
                self.end_headers()

            do_PUT = do_GET  # noqa: N815 - the base class' names

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.url = serve(Handler, certificate("k3s", self.ca, organization=self.organization))
        return self

    def put(self, path: str, body: bytes) -> int:
        return 405


PASSWORD, EXPIRING = "the-join-password-of-a-cluster", "q4bjus.7k1x6b1fz0d72prp"
HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (f"K10{HASH}::server:pass:word", (HASH, "node:pass:word")),
        (f"K10{HASH}::node:x", (HASH, "node:x")),
        ("password", (None, "node:password")),
        (f"K10{HASH}::{EXPIRING}", (HASH, EXPIRING)),
        (EXPIRING, (None, EXPIRING)),
        # A password in the form of an expiring token: the user before it decides.
        (f"K10{HASH}::node:{EXPIRING}", (HASH, f"node:{EXPIRING}")),
    ],
)
def test_token_is_parsed(text: str, parsed: tuple[str | None, str]) -> None:
    assert k3s_tokens.parse_token(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["", "K10short::server:x", f"K10{HASH}", f"K10{HASH}::server:", f"K10{HASH}::q4bjus.short", "two words"],
)
def test_malformed_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(k3s_tokens.TokenError) as caught:
        k3s_tokens.parse_token(text)
    assert caught.value.reason == "malformed"
    assert not text or text not in str(caught.value)


def test_token_is_never_sent_without_tls() -> None:
    with pytest.raises(k3s_tokens.TokenError, match="https"):
        join_token.verify("http://127.0.0.1:6443", "a CA", "password", 1)


@pytest.mark.parametrize(
    ("given", "server", "written"),
    [
        (PASSWORD, False, f"node:{PASSWORD}"),
        (PASSWORD, True, f"server:{PASSWORD}"),
        (EXPIRING, False, EXPIRING),
    ],
)
def test_token_is_completed_with_the_hash(given: str, server: bool, written: str) -> None:
    full = k3s_tokens.complete(given, f"K10{HASH}", server)
    assert full == f"K10{HASH}::{written}"
    assert k3s_tokens.complete(full, f"K10{HASH}", server) == full


def test_token_of_another_cluster_is_refused_without_a_request() -> None:
    with pytest.raises(k3s_tokens.TokenError, match="another cluster") as caught:
        k3s_tokens.complete(f"K10{HASH}::node:{PASSWORD}", f"K10{'0' * 64}", False)
    assert caught.value.reason == "other-ca"


@pytest.fixture(scope="module")
def cluster_ca() -> Pair:
    return authority("k3s-server-ca@1")


@pytest.fixture
def server(cluster_ca: Pair, serve: Serve) -> Server:
    return Server(cluster_ca, (basic(PASSWORD), f"Bearer {EXPIRING}")).start(serve)


def test_server_is_asked_about_a_token(server: Server) -> None:
    ca = server.ca.pem.decode()
    for right in (PASSWORD, EXPIRING):
        join_token.verify(server.url, ca, right, 10)
    for wrong, words in (("another-password", "HTTP 401"), ("aaaaaa.bbbbbbbbbbbbbbbb", "may have expired")):
        with pytest.raises(k3s_tokens.TokenError, match=words) as caught:
            join_token.verify(server.url, ca, wrong, 10)
        assert caught.value.reason == "refused"


def joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **params: Any) -> Data:
    places = {"path": str(tmp_path / "token"), "marker": str(tmp_path / "marker")}
    given = {"server_url": None, "ca": None, "ca_hash": None, "first": "", "server": False}
    given |= {**places, **params}
    return playing.outcome(monkeypatch, join_token, given)


@pytest.mark.parametrize("given", [EXPIRING, f"K10{HASH}::{EXPIRING}"], ids=["short", "full"])
def test_expiring_token_is_for_agents_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str
) -> None:
    result = joined(monkeypatch, tmp_path, token=given, server=True)
    assert (result["failed"], result["reason"]) == (True, "malformed")
    assert "from agents only" in result["msg"]
    assert not (tmp_path / "token").exists()


def test_expired_token_of_a_member_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    expired = "aaaaaa.bbbbbbbbbbbbbbbb"
    certificate = tmp_path / "client-kubelet.crt"
    monkeypatch.setattr(join_token.has_joined_with, "__defaults__", (str(certificate),))
    (tmp_path / "token").write_text(f"K10{HASH}::{expired}\n")
    at = {"server_url": server.url, "ca": server.ca.pem.decode()}
    assert joined(monkeypatch, tmp_path, **at, token=expired)["reason"] == "refused"
    certificate.touch()
    assert joined(monkeypatch, tmp_path, **at, token=expired) == {"changed": False, "restart_due": False}
    # Another token, or a password, is not excused by that.
    for other in ("cccccc.bbbbbbbbbbbbbbbb", "another-password"):
        assert joined(monkeypatch, tmp_path, **at, token=other)["reason"] == "refused"


CLUSTER = {"server": ("jetson-1", "jetson-2", "jetson-3"), "agent": ("jetson-4",)}
PLAYBOOK = """\
- hosts: BOARD
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.k3s, tasks_from: TASKS}
    - ansible.builtin.debug: {msg: "answer={{ (k3s_token_answer | default({})).reason | default('') }}"}
"""


@pytest.fixture
def impostor(serve: Serve) -> Server:
    """Another computer at the server's address, with a CA of its own, which would take any token."""
    own = authority("k3s-server-ca@1")
    return Server(own, (basic(PASSWORD), f"Bearer {EXPIRING}")).start(serve)


def run(
    directory: Path,
    board: str,
    tasks: str,
    cluster_ca: Pair | None = None,
    *,
    fails: bool = False,
    **variables: Any,
) -> Run:
    """Run a file of the role's tasks for a board, where the first server may have its CA."""
    if cluster_ca:
        (directory / "server-ca.crt").write_bytes(cluster_ca.pem)
        if not (directory / "server").exists():
            cluster_tokens(directory, "of-servers", "of-servers")
    text = PLAYBOOK.replace("BOARD", board).replace("TASKS", tasks)
    return play(directory, text, variables, fails=fails)


def play(
    directory: Path, text: str, variables: Data | None = None, *, fails: bool = False, **environment: str
) -> Run:
    """Run a playbook on boards whose files are all in the directory."""
    files = {
        "__k3s_server_data": str(directory / "server"),
        "__k3s_server_ca_file": str(directory / "server-ca.crt"),
        "__k3s_token_file": str(directory / "token"),
        "__k3s_agent_token_file": str(directory / "agent-token"),
        "__k3s_marker": str(directory / "marker"),
    }
    given = files | (variables or {})
    return play_text(directory, text, groups=CLUSTER, variables=given, fails=fails, **environment)


def sent(server: Server) -> str:
    """All that a server was sent, tokens in any of their forms."""
    heard = "\n".join(server.requests)
    encoded = [base64.b64encode(f"{user}:{PASSWORD}".encode()).decode() for user in ("node", "server")]
    return "\n".join(line for line in heard.splitlines() if "Authorization" in line) + "".join(
        one for one in (PASSWORD, EXPIRING, *encoded) if one in heard
    )


def test_impostor_gets_nothing_from_an_agent(cluster_ca: Pair, impostor: Server, tmp_path: Path) -> None:
    given: Data = {"k3s_server_url": impostor.url, "k3s_token": PASSWORD}
    ran = run(tmp_path, "jetson-4", "agent_token.yml", cluster_ca, fails=True, **given)
    assert sent(impostor) == ""
    assert "has no certificate of this cluster's CA, so the join token was not sent" in ran.said
    assert not (tmp_path / "token").exists()


def test_impostor_gets_nothing_from_preflight(cluster_ca: Pair, impostor: Server, tmp_path: Path) -> None:
    ran = run(
        tmp_path, "jetson-2", "check_token.yml", cluster_ca, k3s_server_url=impostor.url, k3s_token=PASSWORD
    )
    assert sent(impostor) == ""
    assert "answer=untrusted" in ran.stdout


def test_preflight_checks_the_token_and_writes_nothing(
    cluster_ca: Pair, server: Server, tmp_path: Path
) -> None:
    given: Data = {"k3s_server_url": server.url, "k3s_token": PASSWORD}
    run(tmp_path, "jetson-4", "check_token.yml", cluster_ca, **given)
    assert sent(server) != ""
    assert not (tmp_path / "token").exists()
    assert not (tmp_path / "marker").exists()


def test_nothing_is_sent_while_the_ca_is_not_known(impostor: Server, tmp_path: Path) -> None:
    given: Data = {"k3s_server_url": impostor.url, "k3s_token": PASSWORD}
    ran = run(tmp_path, "jetson-4", "agent_token.yml", fails=True, **given)
    assert impostor.requests == []
    assert "jetson-1 has no CA (/var/lib/rancher/k3s/server/tls/server-ca.crt)" in ran.said
    assert not (tmp_path / "token").exists()


def test_preflight_sends_nothing_before_there_is_a_cluster(impostor: Server, tmp_path: Path) -> None:
    ran = run(tmp_path, "jetson-4", "check_token.yml", k3s_server_url=impostor.url, k3s_token="K10cut-off")
    assert "answer=malformed" in ran.stdout
    assert impostor.requests == []


def cluster_tokens(directory: Path, server: str, agent: str) -> None:
    """What K3s keeps beside its data, node-token being the servers'."""
    (directory / "server").mkdir()
    for name, secret in {"token": server, "node-token": server, "agent-token": agent}.items():
        (directory / "server" / name).write_text(f"K10{HASH}::node:{secret}\n")


def test_agents_get_the_agent_token(cluster_ca: Pair, tmp_path: Path, serve: Serve) -> None:
    cluster_tokens(tmp_path, "of-servers", PASSWORD)
    true = Server(cluster_ca, (basic(PASSWORD),)).start(serve)
    run(tmp_path, "jetson-4", "agent_token.yml", cluster_ca, k3s_server_url=true.url)
    assert (tmp_path / "token").read_text().endswith(f"::node:{PASSWORD}\n")


@pytest.mark.acceptance
@pytest.mark.parametrize("old", [False, True], ids=["new K3s", "old K3s"])
def test_tokens_that_are_read_on_the_server_are_not_shown(
    cluster_ca: Pair, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    monkeypatch.setenv("ANSIBLE_VERBOSITY", "3")
    cluster_tokens(tmp_path, PASSWORD, PASSWORD)
    if old:
        (tmp_path / "server/agent-token").unlink()
    true = Server(cluster_ca, (basic(PASSWORD),)).start(serve)
    for board, tasks in (("jetson-4", "agent_token.yml"), ("jetson-2", "server_token.yml")):
        ran = run(tmp_path, board, tasks, cluster_ca, k3s_server_url=true.url)
        shown = base64.b64encode((tmp_path / "server/node-token").read_bytes()).decode()
        assert "ok: [" in ran.stdout
        assert PASSWORD not in ran.stdout
        assert shown not in ran.stdout


@pytest.mark.acceptance
@pytest.mark.parametrize("given", [{}, {"k3s_agent_token": f"with:{PASSWORD}"}], ids=["not given", "given"])
def test_token_of_agents_stays_the_clusters(tmp_path: Path, given: Data) -> None:
    # Otherwise K3s takes the servers' for agents, and does not start at its second start.
    cluster_tokens(tmp_path, "of-servers", f"with:{PASSWORD}")
    run(tmp_path, "jetson-1", "server_token.yml", **given)
    assert (tmp_path / "agent-token").read_text() == f"with:{PASSWORD}\n"


def test_new_cluster_begins_with_a_token_of_its_own_for_agents(tmp_path: Path) -> None:
    path = tmp_path / "agent-token"
    text = PLAYBOOK.replace("BOARD", "jetson-1").replace("TASKS", "server_token.yml")
    text = text.replace("answer={{", "configured={{ __k3s_has_agent_token }} answer={{")
    first, again = (play(tmp_path, text, ANSIBLE_VERBOSITY="3") for _ in range(2))
    token = path.read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{32}", token)
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in first.stdout + again.stdout
    # K3s has to have it at its first start.
    assert "configured=True" in first.stdout
    assert "changed=0" in again.stdout
    # The same one in another cluster would be no secret.
    path.unlink()
    play(tmp_path, text)
    assert path.read_text().strip() != token


BEGUN: dict[str, Data] = {
    "before this release": {"files": ("cred/passwd",)},
    "data in a database elsewhere": {"k3s_plan": {"external_datastore": True, "own_agent_token": False}},
    "a token in the owner's own files": {"k3s_plan": {"external_datastore": False, "own_agent_token": True}},
    "about to be restored": {"__k3s_begins": False},
}


@pytest.mark.parametrize("case", BEGUN)
def test_cluster_that_has_begun_without_one_gets_none(tmp_path: Path, case: str) -> None:
    # K3s would start once with it, and then never again.
    given = dict(BEGUN[case])
    for name in given.pop("files", ()):
        (tmp_path / "server" / name).parent.mkdir(parents=True)
        (tmp_path / "server" / name).touch()
    run(tmp_path, "jetson-1", "server_token.yml", **given)
    assert not (tmp_path / "agent-token").exists()


@pytest.mark.parametrize("given", [{}, {"k3s_token": "of-servers"}], ids=["not given", "given to all"])
def test_agent_never_gets_the_token_of_servers(
    cluster_ca: Pair, tmp_path: Path, serve: Serve, given: Data
) -> None:
    cluster_tokens(tmp_path, "of-servers", PASSWORD)
    true = Server(cluster_ca, (basic(PASSWORD),)).start(serve)
    run(tmp_path, "jetson-4", "check_token.yml", cluster_ca, k3s_server_url=true.url, **given)
    run(tmp_path, "jetson-4", "agent_token.yml", cluster_ca, k3s_server_url=true.url, **given)
    assert (tmp_path / "token").read_text().endswith(f"::node:{PASSWORD}\n")
    assert basic("of-servers") not in "".join(true.requests)


def test_agent_gets_nothing_where_the_token_of_agents_cannot_be_read(
    cluster_ca: Pair, tmp_path: Path, server: Server
) -> None:
    cluster_tokens(tmp_path, PASSWORD, PASSWORD)
    (tmp_path / "server/agent-token").unlink()
    (tmp_path / "server/agent-token").mkdir()  # as unreadable as on a disk with errors
    for board, tasks in (("jetson-4", "agent_token.yml"), ("jetson-1", "server_token.yml")):
        ran = run(tmp_path, board, tasks, cluster_ca, fails=True, k3s_server_url=server.url)
        assert "agent-token of jetson-1 cannot be read" in ran.said
    assert not (tmp_path / "token").exists()
    assert server.requests == []


def test_token_of_a_server_is_compared_and_never_sent(cluster_ca: Pair, tmp_path: Path, serve: Serve) -> None:
    cluster_tokens(tmp_path, PASSWORD, "of-agents")
    true = Server(cluster_ca).start(serve)
    for given, answer in ((PASSWORD, "answer=\n"), ("another-password", "answer=refused")):
        where: Data = {"k3s_server_url": true.url, "k3s_token": given}
        ran = run(tmp_path, "jetson-2", "check_token.yml", cluster_ca, **where)
        assert answer in ran.stdout.replace('"', "")
    assert [line.split()[:2] for line in true.requests] == [["GET", "/ping"]] * 2
    assert "Authorization" not in "".join(true.requests)


def test_agents_with_the_token_of_servers_get_no_other(tmp_path: Path) -> None:
    cluster_tokens(tmp_path, PASSWORD, PASSWORD)
    run(tmp_path, "jetson-1", "server_token.yml")
    assert not (tmp_path / "agent-token").exists()


@pytest.mark.acceptance
@pytest.mark.parametrize("present", ["of-servers", "another"])
def test_another_token_of_agents_is_refused(tmp_path: Path, present: str) -> None:
    cluster_tokens(tmp_path, "of-servers", present)
    ran = run(tmp_path, "jetson-1", "server_token.yml", fails=True, k3s_agent_token=PASSWORD)
    assert "is not the token that this cluster began with, and K3s cannot change it" in ran.said
    assert PASSWORD not in ran.said
    assert not (tmp_path / "agent-token").exists()


def test_further_server_joins_by_a_token_that_names_the_ca(cluster_ca: Pair, tmp_path: Path) -> None:
    # K3s sends a token without the hash to any computer that answers.
    run(tmp_path, "jetson-2", "server_token.yml", cluster_ca, k3s_token=PASSWORD)
    expected = f"K10{HASH}::server:{PASSWORD}\n"
    assert (tmp_path / "token").read_text() == expected


@pytest.mark.parametrize("token", [PASSWORD, EXPIRING], ids=["password", "expiring"])
def test_impostor_gets_no_token_of_any_form(cluster_ca: Pair, impostor: Server, token: str) -> None:
    with pytest.raises(k3s_tokens.TokenError, match="was not sent"):
        join_token.verify(impostor.url, cluster_ca.pem.decode(), token, 10)
    assert impostor.requests == []


@pytest.mark.parametrize("token", [PASSWORD, EXPIRING])
def test_node_with_a_certificate_of_its_kubelet_gets_no_token(
    cluster_ca: Pair, serve: Serve, token: str
) -> None:
    """K3s signs it by the same CA, with addresses that the node names, and the node's name, here `k3s`."""
    node = Server(cluster_ca, organization="").start(serve)
    with pytest.raises(k3s_tokens.TokenError, match="has no certificate of this cluster's CA") as caught:
        join_token.verify(node.url, cluster_ca.pem.decode(), token, 10)
    assert caught.value.reason == "untrusted"
    assert node.requests == []


def test_redirect_takes_no_token_elsewhere(cluster_ca: Pair, impostor: Server, serve: Serve) -> None:
    true = Server(cluster_ca, moved_to=impostor.url).start(serve)
    with pytest.raises(k3s_tokens.TokenError, match="answers HTTP 302"):
        join_token.verify(true.url, cluster_ca.pem.decode(), PASSWORD, 10)
    assert impostor.requests == []


def test_request_without_a_ca_trusts_nobody() -> None:
    with pytest.raises(OSError, match="CA is not known"):
        k3s_tokens.opener("")


OLD, NEW = "an-old-token-of-the-server", "a-new-token-of-the-server"
Ensure = Callable[..., bool]


class K3s(Server):
    """SIMULATED: what K3s does when its token is changed (its pkg/server/handlers)."""

    def __init__(self, directory: Path) -> None:
        own = certs.authority("k3s-server-ca@1")
        super().__init__(own, (basic(OLD, "server"),))
        self.file = directory / "server/token"
        own.write(directory / "server/tls", "server-ca")
        self.write(OLD)

    def write(self, password: str) -> None:
        """Write the token in its full form, with the newline that the file ends with."""
        self.file.write_text(f"K10{HASH}::server:{password}\n")

    def put(self, path: str, body: bytes) -> int:
        """Write the new token into the file now; nodes need it from the next start on."""
        assert path == "/v1-k3s/token"
        self.write(json.loads(body)["newToken"] or secrets.token_hex(16))
        return 200


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> Data:
    monkeypatch.setattr(rotation, "SERVER_DIRECTORY", str(tmp_path / "server"))
    configuration = (str(tmp_path / "config.yaml"), str(tmp_path / "config.yaml.d/*"))
    monkeypatch.setattr(rotation, "CONFIGURATION", configuration)
    return {
        "token": None,
        "token_file": str(tmp_path / "jetson-k3s.token"),
        "record": str(tmp_path / "old-token"),
        "url": K3s(tmp_path).start(serve).url,
        "version": "v1.33.5+k3s1",
        "marker": str(tmp_path / "run/k3s.restart"),
    }


def current_token(board: Data) -> str:
    return (Path(board["record"]).parent / "server/token").read_text().strip()


@pytest.fixture
def ensure(board: Data) -> Ensure:
    def run(check_mode: bool = False, **changes: Any) -> bool:
        return bool(rotation.ensure_rotated(board | changes, current_token(board), check_mode))

    return run


def test_server_makes_a_token_and_the_old_one_is_kept(board: Data, ensure: Ensure) -> None:
    old = current_token(board)
    assert ensure() is True
    assert k3s_tokens.secret(current_token(board)) != OLD
    record = Path(board["record"])
    assert (record.read_text().strip(), record.stat().st_mode & 0o777) == (old, 0o600)
    assert Path(board["marker"]).exists()
    # The same command again, with nothing left to change.
    assert ensure() is False
    kept = rotation.close(board["record"], current_token(board))
    assert Path(kept).read_text().strip() == old
    assert not record.exists()
    assert rotation.close(board["record"], current_token(board)) == ""


def test_given_token_is_set_once(board: Data, ensure: Ensure) -> None:
    assert [ensure(token=NEW), ensure(token=NEW)] == [True, False]
    assert k3s_tokens.secret(current_token(board)) == NEW
    assert ensure(token=current_token(board)) is False


def test_interrupted_run_changes_the_token_when_it_is_repeated(board: Data, ensure: Ensure) -> None:
    Path(board["record"]).write_text(current_token(board) + "\n")
    assert ensure() is True


def test_check_mode_changes_nothing(board: Data, ensure: Ensure) -> None:
    old = current_token(board)
    assert ensure(check_mode=True) is True
    assert current_token(board) == old
    assert not Path(board["record"]).exists()
    assert not Path(board["marker"]).exists()


@pytest.mark.parametrize(
    ("url", "words"), [("https://127.0.0.1:1", "no K3s answers"), (None, "HTTP status 401")]
)
def test_failed_rotation_changes_nothing(board: Data, ensure: Ensure, url: str | None, words: str) -> None:
    if url is None:  # K3s was not started since its token was changed by hand
        token = Path(board["record"]).parent / "server/token"
        token.write_text(token.read_text().replace(OLD, "changed-by-hand"))
    with pytest.raises(rotation.RotationError, match=words):
        ensure(**({"url": url} if url else {}))
    assert not Path(board["record"]).exists()
    assert not Path(board["marker"]).exists()


@pytest.mark.parametrize(
    ("version", "can"),
    [("v1.24.17+k3s1", False), ("v1.25.15+k3s1", True), ("v1.26.9+k3s1", False), ("v1.29.0+k3s1", True)],
)
def test_k3s_whose_token_cannot_be_changed_is_refused(ensure: Ensure, version: str, can: bool) -> None:
    if can:
        assert ensure(version=version) is True
        return
    with pytest.raises(rotation.RotationError, match=r"cannot change its token\. 1\.25\.15, 1\.26\.10, "):
        ensure(version=version, check_mode=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [("two words", "k3s_token is malformed"), (f"K10{'0' * 64}::server:{NEW}", "of another cluster")],
)
def test_token_that_cannot_be_used_is_not_set(ensure: Ensure, text: str, words: str) -> None:
    with pytest.raises(rotation.RotationError, match=words) as refused:
        ensure(token=text)
    assert text not in str(refused.value)


def test_token_of_the_owners_files_stops_the_rotation(board: Data, ensure: Ensure, tmp_path: Path) -> None:
    config, token_file = tmp_path / "config.yaml", Path(board["token_file"])
    config.write_text(f"token: '{OLD}'\n")
    with pytest.raises(rotation.RotationError, match=r"stands in .*/config\.yaml\. K3s would start with it"):
        ensure()
    config.write_text(f"token-file: {token_file}\n")
    token_file.write_text(OLD + "\n")
    with pytest.raises(rotation.RotationError, match=r"stands in .*/jetson-k3s\.token\."):
        ensure()
    # With a token of the inventory the role writes this file.
    assert ensure(token=NEW) is True
