# SPDX-License-Identifier: Apache-2.0
"""A computer that has taken a server's address gets no token: the cluster's CA is read over SSH first.

The k3s role's tasks run on this machine. The true server's CA is a file here, as it is on the server.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.certs import Pair, authority
from tests.unit.roles.conftest import Serve
from tests.unit.roles.fake_k3s import Server, basic
from tests.unit.roles.loading import load
from tests.unit.roles.playing import Run, play_text

join_token = load("k3s/library/k3s_join_token.py")
PASSWORD, EXPIRING = "the-join-password-of-a-cluster", "q4bjus.7k1x6b1fz0d72prp"
CLUSTER = {"server": ("jetson-1", "jetson-2", "jetson-3"), "agent": ("jetson-4",)}
PLAYBOOK = """\
- hosts: BOARD
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: k3s, tasks_from: TASKS}
    - ansible.builtin.debug: {msg: "answer={{ (k3s_token_answer | default({})).reason | default('') }}"}
"""


@pytest.fixture(scope="module")
def ca() -> Pair:
    return authority("k3s-server-ca@1")


@pytest.fixture
def impostor(serve: Serve) -> Server:
    """Another computer at the server's address, with a CA of its own, which would take any token."""
    own = authority("k3s-server-ca@1")
    return Server(own, own.pem, (basic(PASSWORD), f"Bearer {EXPIRING}")).start(serve)


def run(
    directory: Path, board: str, tasks: str, ca: Pair | None = None, *, fails: bool = False, **variables: Any
) -> Run:
    """Run a file of the role's tasks for a board, where the first server may have its CA."""
    if ca:
        (directory / "server-ca.crt").write_bytes(ca.pem)
    files = {
        "__k3s_server_data": str(directory / "server"),
        "__k3s_server_ca_file": str(directory / "server-ca.crt"),
        "__k3s_token_file": str(directory / "token"),
        "__k3s_agent_token_file": str(directory / "agent-token"),
        "__k3s_marker": str(directory / "marker"),
    }
    text = PLAYBOOK.replace("BOARD", board).replace("TASKS", tasks)
    return play_text(directory, text, groups=CLUSTER, variables={**files, **variables}, fails=fails)


def sent(server: Server) -> str:
    """All that a server was sent, tokens in any of their forms."""
    heard = "\n".join(server.requests)
    encoded = [base64.b64encode(f"{user}:{PASSWORD}".encode()).decode() for user in ("node", "server")]
    return "\n".join(line for line in heard.splitlines() if "Authorization" in line) + "".join(
        one for one in (PASSWORD, EXPIRING, *encoded) if one in heard
    )


def test_impostor_gets_nothing_from_an_agent(ca: Pair, impostor: Server, tmp_path: Path) -> None:
    given: dict[str, Any] = {"k3s_server_url": impostor.url, "k3s_token": PASSWORD}
    ran = run(tmp_path, "jetson-4", "agent_token.yml", ca, fails=True, **given)
    assert sent(impostor) == ""
    assert "has no certificate of this cluster's CA, so the join token was not sent" in ran.said
    assert not (tmp_path / "token").exists()


def test_impostor_gets_nothing_from_preflight(ca: Pair, impostor: Server, tmp_path: Path) -> None:
    ran = run(tmp_path, "jetson-2", "check_token.yml", ca, k3s_server_url=impostor.url, k3s_token=PASSWORD)
    assert sent(impostor) == ""
    assert "answer=untrusted" in ran.stdout


def test_nothing_is_sent_while_the_ca_is_not_known(impostor: Server, tmp_path: Path) -> None:
    given: dict[str, Any] = {"k3s_server_url": impostor.url, "k3s_token": PASSWORD}
    ran = run(tmp_path, "jetson-4", "agent_token.yml", fails=True, **given)
    assert impostor.requests == []
    assert "jetson-1 has no CA (/var/lib/rancher/k3s/server/tls/server-ca.crt)" in ran.said
    assert not (tmp_path / "token").exists()


def test_preflight_sends_nothing_before_there_is_a_cluster(impostor: Server, tmp_path: Path) -> None:
    ran = run(tmp_path, "jetson-4", "check_token.yml", k3s_server_url=impostor.url, k3s_token="K10cut-off")
    assert "answer=malformed" in ran.stdout
    assert impostor.requests == []


def cluster_tokens(directory: Path, server: str, agent: str, ca_hash: str = "1" * 64) -> None:
    """What K3s keeps beside its data, node-token being the servers'."""
    (directory / "server").mkdir()
    for name, secret in {"token": server, "node-token": server, "agent-token": agent}.items():
        (directory / "server" / name).write_text(f"K10{ca_hash}::node:{secret}\n")


def test_agents_get_the_token_of_agents_from_their_server(ca: Pair, tmp_path: Path, serve: Serve) -> None:
    hash_of_ca = load("k3s/module_utils/k3s_ca.py").bundle_hash(ca.pem)
    cluster_tokens(tmp_path, "of-servers", PASSWORD, hash_of_ca)
    true = Server(ca, ca.pem, (basic(PASSWORD),)).start(serve)
    run(tmp_path, "jetson-4", "agent_token.yml", ca, k3s_server_url=true.url)
    assert (tmp_path / "token").read_text().endswith(f"::node:{PASSWORD}\n")


@pytest.mark.parametrize("given", [{}, {"k3s_agent_token": f"with:{PASSWORD}"}], ids=["unsaid", "said"])
def test_token_of_agents_stays_as_it_is_in_the_cluster(tmp_path: Path, given: dict[str, Any]) -> None:
    # Else K3s takes the servers' for agents, and does not start at its second start.
    cluster_tokens(tmp_path, "of-servers", f"with:{PASSWORD}")
    run(tmp_path, "jetson-1", "server_token.yml", **given)
    assert (tmp_path / "agent-token").read_text() == f"with:{PASSWORD}\n"


def test_servers_whose_agents_have_no_token_of_their_own_get_none(tmp_path: Path) -> None:
    cluster_tokens(tmp_path, PASSWORD, PASSWORD)
    run(tmp_path, "jetson-1", "server_token.yml")
    assert not (tmp_path / "agent-token").exists()


@pytest.mark.parametrize("present", ["of-servers", "another"])
def test_another_token_of_agents_is_refused(tmp_path: Path, present: str) -> None:
    cluster_tokens(tmp_path, "of-servers", present)
    ran = run(tmp_path, "jetson-1", "server_token.yml", fails=True, k3s_agent_token=PASSWORD)
    assert "is not the token that this cluster began with, and K3s cannot change it" in ran.said
    assert PASSWORD not in ran.said
    assert not (tmp_path / "agent-token").exists()


def test_further_server_joins_by_a_token_that_names_the_ca(ca: Pair, tmp_path: Path) -> None:
    # K3s sends a token without the hash to any computer that answers.
    run(tmp_path, "jetson-2", "server_token.yml", ca, k3s_token=PASSWORD)
    hash_of_ca = load("k3s/module_utils/k3s_ca.py").bundle_hash(ca.pem)
    assert (tmp_path / "token").read_text() == f"K10{hash_of_ca}::server:{PASSWORD}\n"


@pytest.mark.parametrize("token", [PASSWORD, EXPIRING], ids=["password", "expiring"])
def test_impostor_gets_no_token_of_any_form(ca: Pair, impostor: Server, token: str) -> None:
    with pytest.raises(join_token.TokenError, match="was not sent"):
        join_token.verify(impostor.url, ca.pem.decode(), token, 10)
    assert impostor.requests == []


def test_redirect_takes_no_token_elsewhere(ca: Pair, impostor: Server, serve: Serve) -> None:
    true = Server(ca, ca.pem, moved_to=impostor.url).start(serve)
    with pytest.raises(join_token.TokenError, match="answers HTTP 302"):
        join_token.verify(true.url, ca.pem.decode(), PASSWORD, 10)
    assert impostor.requests == []


def test_request_without_a_ca_trusts_nobody() -> None:
    with pytest.raises(OSError, match="CA is not known"):
        load("k3s/module_utils/k3s_token.py").opener("")
