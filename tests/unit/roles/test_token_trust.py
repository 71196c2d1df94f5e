# SPDX-License-Identifier: Apache-2.0
"""A computer that has taken a server's address gets no token: the cluster's CA is read over SSH first.

The k3s role's tasks run on this machine. The true server's CA is a file here, as it is on the server.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.unit.roles.conftest import Load
from tests.unit.roles.fake_k3s import Authority, Server, authority, basic, serving
from tests.unit.roles.playing import play

PASSWORD, EXPIRING = "the-join-password-of-a-cluster", "q4bjus.7k1x6b1fz0d72prp"
PLAYBOOK = """\
- hosts: BOARD
  gather_facts: false
  become: false
  tasks:
    - ansible.builtin.import_role: {name: k3s, tasks_from: TASKS}
    - ansible.builtin.debug: {msg: "answer={{ (k3s_token_answer | default({})).reason | default('') }}"}
"""


@pytest.fixture(scope="module")
def ca() -> Authority:
    """The cluster's CA."""
    return authority("k3s-server-ca@1")


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Server]:
    """Another computer at the server's address, with a CA of its own, which would take any token."""
    own = authority("k3s-server-ca@1")
    with serving(tmp_path, own, own.pem, (basic(PASSWORD), f"Bearer {EXPIRING}")) as up:
        yield up


def run(directory: Path, board: str, tasks_file: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a file of the role's tasks for a board; the cluster has three servers and an agent."""
    servers = ("jetson-1", "jetson-2", "jetson-3")
    inventory = {
        "all": {
            "children": {
                "server": {"hosts": dict.fromkeys(servers)},
                "agent": {"hosts": {"jetson-4": None}},
            },
            "vars": {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
            },
        }
    }
    (directory / "inventory.yml").write_text(yaml.safe_dump(inventory))
    (directory / "play.yml").write_text(PLAYBOOK.replace("BOARD", board).replace("TASKS", tasks_file))
    files = {
        "__k3s_server_ca_file": str(directory / "server-ca.crt"),
        "__k3s_token_file": str(directory / "token"),
        "__k3s_marker": str(directory / "marker"),
    }
    (directory / "variables.yml").write_text(yaml.safe_dump({**files, **variables}))
    return play(
        directory / "inventory.yml",
        directory / "play.yml",
        f"--extra-vars=@{directory / 'variables.yml'}",
    )


def sent(server: Server) -> str:
    """All that a server was sent, tokens in any of their forms."""
    heard = "\n".join(server.requests)
    encoded = [base64.b64encode(f"{user}:{PASSWORD}".encode()).decode() for user in ("node", "server")]
    return "\n".join(line for line in heard.splitlines() if "Authorization" in line) + "".join(
        one for one in (PASSWORD, EXPIRING, *encoded) if one in heard
    )


def test_impostor_gets_nothing_from_an_agent(ca: Authority, impostor: Server, tmp_path: Path) -> None:
    (tmp_path / "server-ca.crt").write_bytes(ca.pem)
    ran = run(tmp_path, "jetson-4", "agent_token.yml", k3s_server_url=impostor.url, k3s_token=PASSWORD)
    assert sent(impostor) == ""
    assert ran.returncode != 0
    assert "has no certificate of this cluster's CA, so the join token was not sent" in " ".join(
        ran.stdout.split()
    )
    assert not (tmp_path / "token").exists()


def test_impostor_gets_nothing_from_preflight(ca: Authority, impostor: Server, tmp_path: Path) -> None:
    (tmp_path / "server-ca.crt").write_bytes(ca.pem)
    ran = run(tmp_path, "jetson-2", "check_token.yml", k3s_server_url=impostor.url, k3s_token=PASSWORD)
    assert ran.returncode == 0, ran.stdout
    assert sent(impostor) == ""
    assert "answer=untrusted" in ran.stdout


def test_nothing_is_sent_while_the_ca_is_not_known(impostor: Server, tmp_path: Path) -> None:
    ran = run(tmp_path, "jetson-4", "agent_token.yml", k3s_server_url=impostor.url, k3s_token=PASSWORD)
    assert ran.returncode != 0
    assert impostor.requests == []
    assert "jetson-1 has no CA (/var/lib/rancher/k3s/server/tls/server-ca.crt)" in " ".join(
        ran.stdout.split()
    )
    assert not (tmp_path / "token").exists()


def test_preflight_sends_nothing_before_there_is_a_cluster(impostor: Server, tmp_path: Path) -> None:
    ran = run(tmp_path, "jetson-4", "check_token.yml", k3s_server_url=impostor.url, k3s_token="K10cut-off")
    assert ran.returncode == 0, ran.stdout
    assert "answer=malformed" in ran.stdout
    assert impostor.requests == []


def test_agent_gets_the_full_token_from_the_true_server(ca: Authority, tmp_path: Path, load: Load) -> None:
    hash_of_ca = load("k3s/module_utils/k3s_ca.py").bundle_hash(ca.pem)
    (tmp_path / "server-ca.crt").write_bytes(ca.pem)
    with serving(tmp_path, ca, ca.pem, (basic(PASSWORD),)) as true:
        ran = run(tmp_path, "jetson-4", "agent_token.yml", k3s_server_url=true.url, k3s_token=PASSWORD)
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "token").read_text() == f"K10{hash_of_ca}::node:{PASSWORD}\n"
    assert PASSWORD not in ran.stdout


def test_further_server_joins_by_a_token_that_names_the_ca(ca: Authority, tmp_path: Path, load: Load) -> None:
    # K3s sends a token without the hash to any computer that answers.
    hash_of_ca = load("k3s/module_utils/k3s_ca.py").bundle_hash(ca.pem)
    (tmp_path / "server-ca.crt").write_bytes(ca.pem)
    ran = run(tmp_path, "jetson-2", "server_token.yml", k3s_token=PASSWORD)
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "token").read_text() == f"K10{hash_of_ca}::server:{PASSWORD}\n"


@pytest.mark.parametrize("token", [PASSWORD, EXPIRING], ids=["password", "expiring"])
def test_impostor_gets_no_token_of_any_form(ca: Authority, impostor: Server, load: Load, token: str) -> None:
    module: ModuleType = load("k3s/library/k3s_join_token.py")
    with pytest.raises(module.TokenError, match="was not sent"):
        module.verify(impostor.url, ca.pem.decode(), token, 10)
    assert impostor.requests == []


def test_redirect_takes_no_token_elsewhere(
    ca: Authority, impostor: Server, tmp_path: Path, load: Load
) -> None:
    module: ModuleType = load("k3s/library/k3s_join_token.py")
    directory = tmp_path / "true"
    directory.mkdir()
    moved = pytest.raises(module.TokenError, match="answers HTTP 302")
    with serving(directory, ca, ca.pem, moved_to=impostor.url) as true, moved:
        module.verify(true.url, ca.pem.decode(), PASSWORD, 10)
    assert impostor.requests == []


def test_request_without_a_ca_trusts_nobody(load: Load, impostor: Server) -> None:
    https: ModuleType = load("k3s/module_utils/k3s_https.py")
    with pytest.raises(OSError, match="CA is not known"):
        https.opener("")
