# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig of the operator's own: who signs it, when it is replaced, and that it is tried first."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_user as user
from ansible_collections.jetson_k3s.cluster.plugins.modules import kubeconfig as module

from tests.unit.roles import certs
from tests.unit.roles.conftest import Serve
from tests.unit.roles.places import Data
from tests.unit.roles.playing import play_text


@dataclass
class Api:
    """SIMULATED: an API server that knows users by their certificates."""

    directory: Path
    refuses: bool = False
    moved_to: str = ""
    users: list[str] = field(default_factory=list)  # of its requests

    def start(self, serve: Serve) -> None:
        self.server_ca, self.client_ca = certs.authority("server-ca"), certs.authority("client-ca")
        self.client_ca.write(self.directory, "client-ca")
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                certificate = self.connection.getpeercert()
                names = dict(part[0] for part in certificate["subject"]) if certificate else {}
                api.users.append(names.get("commonName", ""))
                refused = api.refuses or not names
                moved = api.moved_to and self.path == "/version"
                self.send_response(302 if moved else 401 if refused else 200)
                self.send_header("Location", api.moved_to)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.url = serve(Handler, certs.certificate("serving", self.server_ca), self.client_ca)

    def sign(self, request: str, days: int = 365) -> str:
        command = "openssl x509 -req -in /dev/stdin -CA client-ca.crt -CAkey client-ca.key -set_serial 7"
        done = subprocess.run(
            [*command.split(), "-days", str(days)],
            cwd=self.directory,
            input=request,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@pytest.fixture
def api(tmp_path: Path, serve: Serve) -> Api:
    made = Api(tmp_path)
    made.start(serve)
    return made


@dataclass
class Operator:
    api: Api
    scratch: Path
    path: Path

    @property
    def params(self) -> Data:
        return {
            "user": "anna", "cluster": "jetson-1", "server": self.api.url,
            "ca": self.api.server_ca.pem.decode(), "scratch": str(self.scratch), "certificate": None,
        }  # fmt: skip

    def requested(self, check_mode: bool = False, **changes: Any) -> Data:
        found: Data = module.requested(self.path, self.params | changes, check_mode)
        return found

    def make(self, days: int = 365, **changes: Any) -> Data:
        certificate = self.api.sign(self.requested(**changes)["request"], days)
        found: Data = module.present(self.path, self.params | changes | {"certificate": certificate})
        return found


@pytest.fixture
def operator(api: Api, tmp_path: Path) -> Operator:
    (tmp_path / "scratch").mkdir()
    return Operator(api, tmp_path / "scratch", tmp_path / "kubeconfig-jetson-1.yaml")


def test_file_lets_its_user_in_and_nobody_else_reads_it(operator: Operator) -> None:
    made = operator.make(days=30)
    assert made["changed"] is True
    assert operator.path.stat().st_mode & 0o777 == 0o600
    assert operator.api.users[-1] == "anna"
    content = yaml.safe_load(operator.path.read_text())
    assert content["current-context"] == content["clusters"][0]["name"] == "jetson-1"
    certificate, key = module.client_of(operator.path.read_text())
    assert "PRIVATE KEY" in key
    start, end = module.lifetime(certificate)
    assert (made["ends"], end - start) == (end, 30 * 86400)


def test_second_run_changes_nothing_but_the_mode(operator: Operator) -> None:
    operator.make()
    before = operator.path.read_text()
    assert operator.requested() == {"changed": False, "why": "", "request": ""}
    assert module.present(operator.path, operator.params)["changed"] is False
    operator.path.chmod(0o644)
    assert module.present(operator.path, operator.params)["changed"] is True
    assert (operator.path.stat().st_mode & 0o777, operator.path.read_text()) == (0o600, before)


def test_missing_openssl_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(module.KubeconfigError, match="has no openssl command"):
        module.make_request("anna", tmp_path)


def test_request_has_no_key(operator: Operator) -> None:
    request = operator.requested()["request"]
    assert "PRIVATE" not in request
    command = ["openssl", "req", "-noout", "-subject", "-verify"]
    shown = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
    assert shown.stdout.strip().endswith("CN = anna")


@pytest.mark.parametrize(
    ("changes", "refuses", "damage", "why"),
    [
        ({"user": "otto"}, False, None, "user, server or CA is another one"),
        ({}, True, None, "the server does not take its certificate any more"),
        ({}, False, "users: []\n", "it is damaged"),
    ],
)
def test_outdated_file_is_replaced(
    operator: Operator, changes: Data, refuses: bool, damage: str | None, why: str
) -> None:
    operator.make()
    operator.api.refuses = refuses
    if damage:
        operator.path.write_text(module.HEADER + damage)
    found = operator.requested(**changes)
    assert found["why"] == why
    assert "BEGIN CERTIFICATE REQUEST" in found["request"]


def test_certificate_is_renewed_at_half_its_time(operator: Operator) -> None:
    operator.make(days=10)
    text, params = operator.path.read_text(), operator.params
    start, end = module.lifetime(module.client_of(text)[0])
    assert module.outdated(text, params, start + 0.4 * (end - start)) == ""
    assert module.outdated(text, params, start + 0.6 * (end - start)) == (
        "half of its certificate's time is over"
    )


def test_check_mode_makes_no_key_and_a_file_of_somebody_else_stays(operator: Operator) -> None:
    found = operator.requested(check_mode=True)
    assert found == {"changed": True, "why": "there is none", "request": ""}
    assert list(operator.scratch.iterdir()) == []
    operator.path.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(module.KubeconfigError, match=r"this role has not written it\. Name another file"):
        operator.requested()
    assert operator.path.read_text() == "apiVersion: v1\nkind: Config\n"


def test_failed_file_replaces_no_other(operator: Operator) -> None:
    operator.make()
    before = operator.path.read_text()
    operator.api.refuses = True
    with pytest.raises(module.KubeconfigError, match="does not let the user in: HTTP status 401"):
        operator.make(user="otto")
    assert operator.path.read_text() == before


def test_server_that_answers_with_a_redirect_is_no_api_server(operator: Operator) -> None:
    operator.api.moved_to = f"{operator.api.url}/elsewhere"
    with pytest.raises(module.KubeconfigError, match="sends its clients to another address"):
        operator.requested()
    assert len(operator.api.users) == 1


def test_unreachable_server_is_reported_first(operator: Operator) -> None:
    changes: tuple[tuple[Data, str], ...] = (
        ({"server": "https://127.0.0.1:1"}, "Say by kubeconfig_server under which name"),
        ({"server": operator.api.url.replace("127.0.0.1", "localhost")}, "belongs into its tls-san"),
        ({"ca": operator.api.client_ca.pem.decode()}, "does not fit"),
    )
    for change, words in changes:
        with pytest.raises(module.KubeconfigError, match=words):
            operator.requested(**change)
    assert list(operator.scratch.iterdir()) == []


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Data:
    """SIMULATED: the objects of a cluster by name, without one that changes them."""
    there: Data = {name: {"metadata": {"name": name}} for name in ("view", "edit", "system:node")}
    monkeypatch.setattr(user, "get", lambda _kind, name: there.get(name))
    monkeypatch.setattr(user, "listed", lambda *_: [*there.values()])
    return there


def test_request_that_the_cluster_does_not_sign_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def run(*argv: str, stdin: str = "") -> str:
        called.append(" ".join(argv))
        if argv[0] == "create":
            assert json.loads(stdin)["apiVersion"] == "certificates.k8s.io/v1"
        return json.dumps({"metadata": {"name": "jetson-k3s-x7"}})

    failed = {"status": {"conditions": [{"type": "Failed", "message": "no such signer"}]}}
    monkeypatch.setattr(user, "run", run)
    monkeypatch.setattr(user, "wait_until", lambda *_: failed)
    with pytest.raises(user.UserError, match="the cluster does not sign: no such signer"):
        user.signed("anna", "CSR", 86400)
    assert "delete" in called[-1] and "jetson-k3s-x7" in called[-1]


def test_signed_request_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, ...]] = []

    def run(*argv: str, stdin: str = "") -> str:
        called.append(argv)
        return json.dumps({"metadata": {"name": "jetson-k3s-x7"}})

    certificate = {"status": {"certificate": base64.b64encode(b"PEM").decode()}}
    monkeypatch.setattr(user, "run", run)
    monkeypatch.setattr(user, "wait_until", lambda *_: certificate)
    assert user.signed("anna", "CSR", 86400) == "PEM"
    assert [argv[0] for argv in called] == ["create", "certificate", "delete"]
    spec = user.request_object("anna", "CSR", 86400)["spec"]
    assert (spec["signerName"], spec["expirationSeconds"], spec["usages"]) == (
        "kubernetes.io/kube-apiserver-client",
        86400,
        ["client auth"],
    )


def test_user_is_bound_once_and_to_another_role_by_another_binding(
    objects: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(verb: str, *argv: str, stdin: str = "") -> None:
        if verb == "create":
            made = json.loads(stdin)
            objects[made["metadata"]["name"]] = made
        else:
            del objects[argv[-1]]

    monkeypatch.setattr(user, "run", run)
    bound = [user.bind("anna", role, False) for role in ("view", "view", "edit")]
    assert bound == [True, False, True]
    assert objects["jetson-k3s:anna"] == user.binding("anna", "edit")
    nodes = objects["jetson-k3s:anna:nodes"]["roleRef"]["name"]
    assert objects[nodes]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    ]
    assert [user.bind("anna", None, False) for _ in range(2)] == [True, False]
    assert not [name for name in objects if "anna" in name]


def test_unknown_role_is_refused_with_the_names_of_the_others(objects: Data) -> None:
    user.check_role("view")
    with pytest.raises(user.UserError, match=r"no ClusterRole viewer\. It has edit, view\. Nothing was made"):
        user.check_role("viewer")


def test_binding_is_planned_in_check_mode_and_one_of_others_is_refused(objects: Data) -> None:
    assert user.bind("anna", "view", True) is True
    theirs = user.binding("anna", "admin")
    theirs["metadata"]["labels"] = {}
    objects["jetson-k3s:anna"] = theirs
    for role in ("view", None):
        with pytest.raises(user.UserError, match="is not ours"):
            user.bind("anna", role, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kubeconfig_user": "system:admin"},
        {"kubeconfig_user": "a/b"},
        {"kubeconfig_days": 0},
        {"kubeconfig_days": "-1"},
    ],
)
def test_invalid_user_or_lifetime_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    text = "- {hosts: server, gather_facts: false, roles: [jetson_k3s.cluster.kubeconfig]}\n"
    given = {"kubeconfig_user": "anna", "kubeconfig_file": str(tmp_path / "anna.yaml")} | wrong
    ran = play_text(tmp_path, text, variables=given, fails=True)
    assert "Nothing was made" in ran.said
    assert next(iter(wrong)) in ran.said
    assert not (tmp_path / "anna.yaml").exists()
