# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig of the operator's own: who signs it, when it is made anew, and that it is tried first."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles import certs
from tests.unit.roles.conftest import Serve
from tests.unit.roles.loading import load
from tests.unit.roles.playing import play_text

module = load("kubeconfig/library/kubeconfig.py")
user = load("k3s/library/k3s_user.py")
VIEW = [{"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]}]
# The same, put together in another way, and what everybody may do.
AS_REVIEWED = [
    {"verbs": ["list", "get"], "apiGroups": [""], "resources": ["pods"]},
    {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["services"]},
    {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectrulesreviews"]},
]


@dataclass
class Api:
    """SIMULATED: an API server that knows users by their certificates. The fields are what it answers."""

    directory: Path
    rules: list[dict[str, Any]] = field(default_factory=lambda: list(AS_REVIEWED))
    refuses: bool = False
    later: list[dict[str, Any]] = field(default_factory=list)  # rules that come with the second question

    def start(self, serve: Serve) -> None:
        self.server_ca, self.client_ca = certs.authority("server-ca"), certs.authority("client-ca")
        self.client_ca.write(self.directory, "client-ca")
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                refused = api.refuses or not self.connection.getpeercert()
                body = json.dumps({"status": {"resourceRules": api.rules, "nonResourceRules": None}}).encode()
                api.rules, api.later = [*api.rules, *api.later], []
                self.send_response(401 if refused else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the base class' names

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
    def params(self) -> dict[str, Any]:
        return {
            "user": "anna", "cluster": "jetson-1", "server": self.api.url, "rules": VIEW,
            "ca": self.api.server_ca.pem.decode(), "scratch": str(self.scratch), "certificate": None,
        }  # fmt: skip

    def requested(self, check_mode: bool = False, **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = module.requested(self.path, self.params | changes, check_mode)
        return found

    def make(self, days: int = 365, **changes: Any) -> dict[str, Any]:
        certificate = self.api.sign(self.requested(**changes)["request"], days)
        found: dict[str, Any] = module.present(
            self.path, self.params | changes | {"certificate": certificate}
        )
        return found


@pytest.fixture
def operator(api: Api, tmp_path: Path) -> Operator:
    (tmp_path / "scratch").mkdir()
    return Operator(api, tmp_path / "scratch", tmp_path / "kubeconfig-jetson-1.yaml")


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
        ({"cluster": "jetson-2"}, False, None, "user, server or CA is another one"),
        ({}, True, None, "the server does not take its certificate any more"),
        ({}, False, "users: []\n", "it is damaged"),
    ],
)
def test_file_that_does_not_fit_any_more_is_made_anew(
    operator: Operator, changes: dict[str, Any], refuses: bool, damage: str | None, why: str
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


def test_file_of_somebody_else_is_refused_and_stays(operator: Operator) -> None:
    operator.path.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(module.KubeconfigError, match=r"this role has not written it\. Name another file"):
        operator.requested()
    assert operator.path.read_text() == "apiVersion: v1\nkind: Config\n"


def test_check_mode_says_why_and_makes_no_key(operator: Operator) -> None:
    found = operator.requested(check_mode=True)
    assert found == {"changed": True, "why": "there is none", "request": ""}
    assert list(operator.scratch.iterdir()) == []


def test_file_that_does_not_work_does_not_take_the_place_of_one_that_does(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.make()
    before = operator.path.read_text()
    monkeypatch.setattr(module, "BINDING_SECONDS", 0)
    operator.api.rules = AS_REVIEWED[1:]
    # "get" and "list" of pods.
    with pytest.raises(module.KubeconfigError, match=r"lets the user in, but 2 permission\(s\)"):
        operator.make(user="otto")
    operator.api.refuses = True
    with pytest.raises(module.KubeconfigError, match="does not let the user in: HTTP status 401"):
        operator.make(user="otto")
    assert operator.path.read_text() == before


def test_binding_that_the_server_sees_a_moment_later_is_waited_for(operator: Operator) -> None:
    operator.api.rules, operator.api.later = AS_REVIEWED[1:], AS_REVIEWED[:1]
    assert operator.make()["changed"] is True


def test_server_that_is_not_reached_is_told_before_anything_is_made(operator: Operator) -> None:
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"server": "https://127.0.0.1:1"}, "Say by kubeconfig_server under which name"),
        ({"server": operator.api.url.replace("127.0.0.1", "localhost")}, "belongs into its tls-san"),
        ({"ca": operator.api.client_ca.pem.decode()}, "does not fit"),
    )
    for change, words in changes:
        with pytest.raises(module.KubeconfigError, match=words):
            operator.requested(**change)
    assert list(operator.scratch.iterdir()) == []


def test_openssl_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(module.KubeconfigError, match="has no openssl command"):
        module.make_request("anna", tmp_path)


def test_permissions_are_compared_one_by_one() -> None:
    assert module.permissions(VIEW) < module.permissions(AS_REVIEWED)
    everything = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["*"]},
    ]
    assert module.permissions(everything) == {("*", "*", "*", ""), ("*", "*")}
    named = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": ["a"]}]
    assert module.permissions(named) == {("get", "", "secrets", "a")}


@dataclass
class Kubectl:
    """SIMULATED: kubectl and a cluster that signs, or does not."""

    signs: bool = True
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("run", "get", "listed", "wait_until"):
            monkeypatch.setattr(user, name, getattr(self, name))

    def run(self, *argv: str, stdin: str = "") -> str:
        match argv:
            case ("create", *_):
                made = json.loads(stdin)
                assert made["apiVersion"].endswith(".k8s.io/v1")
                made["metadata"].setdefault("name", "jetson-k3s-x7")
                self.objects[made["kind"].lower(), made["metadata"]["name"]] = made
                self.log.append(f"create {made['metadata']['name']}")
                return json.dumps(made)
            case ("certificate", "approve", name):
                csr = self.objects["certificatesigningrequest", name]
                failed = {"conditions": [{"type": "Failed", "message": "no such signer"}]}
                signed = {"certificate": base64.b64encode(b"PEM").decode()}
                csr["status"] = signed if self.signs else failed
            case ("delete", _, kind, name):
                del self.objects[kind, name]
                self.log.append(f"delete {name}")
        return ""

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.objects.get((kind, name))

    def listed(self, kinds: str, *_argv: str) -> list[dict[str, Any]]:
        return [item for (kind, _), item in self.objects.items() if kind + "s" in kinds.split(",")]

    def wait_until(self, satisfied: Any, what: str, timeout: int, kind: str, name: str) -> dict[str, Any]:
        assert satisfied(self.objects[kind, name])
        return self.objects[kind, name]


@pytest.fixture
def kubectl(monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    made = Kubectl()
    made.install(monkeypatch)
    for name in ("view", "edit", "system:node"):
        made.objects["clusterrole", name] = {"metadata": {"name": name}, "rules": VIEW}
    return made


def test_refusal_to_sign_is_told_and_leaves_nothing(kubectl: Kubectl) -> None:
    kubectl.signs = False
    with pytest.raises(user.UserError, match="the cluster does not sign: no such signer"):
        user.signed("anna", "CSR", 86400, 1)
    assert kubectl.log[-1] == "delete jetson-k3s-x7"


def test_role_that_is_not_there_is_refused_with_those_that_are(kubectl: Kubectl) -> None:
    assert user.rules_of("view") == VIEW
    with pytest.raises(user.UserError, match=r"no ClusterRole viewer\. It has edit, view\. Nothing was made"):
        user.rules_of("viewer")


def test_check_mode_binds_nobody(kubectl: Kubectl) -> None:
    assert user.bind("anna", "view", "present", True) is True
    assert kubectl.log == []


def test_binding_of_that_name_that_is_not_ours_is_refused(kubectl: Kubectl) -> None:
    theirs = user.binding("anna", "admin")
    theirs["metadata"]["labels"] = {}
    kubectl.objects["clusterrolebinding", "jetson-k3s:anna"] = theirs
    for state in ("present", "absent"):
        with pytest.raises(user.UserError, match="is not ours"):
            user.bind("anna", "view", state, False)


def test_bindings_of_others_are_named() -> None:
    theirs = user.binding("anna", "admin")
    theirs["metadata"] = {"name": "admins", "namespace": "team-a"}
    theirs["kind"] = "RoleBinding"
    found = user.others("anna", [user.binding("anna", "view"), theirs, user.binding("otto", "view")])
    assert found == ["RoleBinding team-a/admins (ClusterRole admin)"]


WRONG = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: kubeconfig}
"""


@pytest.mark.parametrize("wrong", [{"kubeconfig_user": "system:admin"}, {"kubeconfig_user": "a/b"}])
def test_what_no_user_can_be_is_refused_before_anything_is_made(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    given = {"kubeconfig_user": "anna", "jetson_k3s_output": str(tmp_path / "anna.yaml")} | wrong
    ran = play_text(tmp_path, WRONG, variables=given, fails=True)
    assert "Nothing was made" in ran.said
    assert not (tmp_path / "anna.yaml").exists()
