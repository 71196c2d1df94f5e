# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig of the operator's own: who signs it, when it is made anew, and that it is tried first."""

from __future__ import annotations

import base64
import json
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.docs import CHECKOUT
from tests.unit.roles import certs
from tests.unit.roles.conftest import Load
from tests.unit.roles.playing import play

VIEW = [{"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]}]
# The same, put together in another way, and what everybody may do.
AS_REVIEWED = [
    {"verbs": ["list", "get"], "apiGroups": [""], "resources": ["pods"]},
    {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["services"]},
    {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectrulesreviews"]},
]
DAY_SECONDS = 86400


@pytest.fixture
def module(load: Load) -> ModuleType:
    return load("kubeconfig/library/kubeconfig.py")


@pytest.fixture
def user(load: Load) -> ModuleType:
    return load("k3s/library/k3s_user.py")


@dataclass
class Api:
    """SIMULATED: an API server that knows users by their certificates. The fields are what it answers."""

    directory: Path
    rules: list[dict[str, Any]] = field(default_factory=lambda: list(AS_REVIEWED))
    asked: list[tuple[str, str]] = field(default_factory=list)  # common name, path
    refuses: bool = False
    later: list[dict[str, Any]] = field(default_factory=list)  # rules that come with the second question

    def __post_init__(self) -> None:
        self.server_ca = certs.authority(self.directory, "server-ca")
        self.client_ca = certs.authority(self.directory, "client-ca")
        serving = certs.certificate(self.directory, "serving", self.server_ca, "127.0.0.1")
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                certificate = self.connection.getpeercert()
                names = dict(part[0] for part in certificate["subject"]) if certificate else {}
                api.asked.append((names.get("commonName", ""), self.path))
                refused = api.refuses or not names
                body = json.dumps({"status": {"resourceRules": api.rules, "nonResourceRules": None}}).encode()
                api.rules, api.later = [*api.rules, *api.later], []
                self.send_response(401 if refused else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the base class' names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nobody reads it."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(serving.cert, serving.key)
        context.load_verify_locations(self.client_ca.cert)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://127.0.0.1:{self.server.server_address[1]}"

    def sign(self, request: str, days: int = 365) -> str:
        """The certificate for a request."""
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(request)
            file.flush()
            return certs.openssl(
                "x509", "-req", "-in", file.name, "-CA", self.client_ca.cert, "-CAkey", self.client_ca.key,
                "-days", str(days), "-set_serial", "7",
            ).decode()  # fmt: skip


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A server of its own for each test."""
    made = Api(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


@dataclass
class Operator:
    """The computer that runs Ansible."""

    module: ModuleType
    api: Api
    scratch: Path
    path: Path

    @property
    def params(self) -> dict[str, Any]:
        """The module's parameters."""
        return {
            "user": "anna", "cluster": "jetson-1", "server": self.api.url, "rules": VIEW,
            "ca": self.api.server_ca.cert.read_text(), "scratch": str(self.scratch), "certificate": None,
        }  # fmt: skip

    def requested(self, check_mode: bool = False, **changes: Any) -> dict[str, Any]:
        """What state `requested` says."""
        found: dict[str, Any] = self.module.requested(self.path, self.params | changes, check_mode)
        return found

    def make(self, days: int = 365, **changes: Any) -> dict[str, Any]:
        """Make the file, as the role does."""
        certificate = self.api.sign(self.requested(**changes)["request"], days)
        found: dict[str, Any] = self.module.present(
            self.path, self.params | changes | {"certificate": certificate}
        )
        return found


@pytest.fixture
def operator(module: ModuleType, api: Api, tmp_path: Path) -> Operator:
    (tmp_path / "scratch").mkdir()
    return Operator(module, api, tmp_path / "scratch", tmp_path / "kubeconfig-jetson-1.yaml")


def test_file_lets_its_user_in_and_nobody_else_reads_it(operator: Operator) -> None:
    made = operator.make()
    assert made["changed"] is True
    assert operator.path.stat().st_mode & 0o777 == 0o600
    assert operator.api.asked[-1] == ("anna", operator.module.REVIEW)
    content = yaml.safe_load(operator.path.read_text())
    assert content["current-context"] == content["clusters"][0]["name"] == "jetson-1"
    key = base64.b64decode(content["users"][0]["user"]["client-key-data"]).decode()
    assert "PRIVATE KEY" in key
    # What it went through on the way is not left.
    assert [path.name for path in operator.scratch.iterdir()] == [operator.module.KEY]


def test_request_has_no_key(operator: Operator) -> None:
    request = operator.requested()["request"]
    assert "PRIVATE" not in request
    shown = subprocess.run(
        ["openssl", "req", "-noout", "-subject", "-verify"], input=request, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert shown.stdout.strip().endswith("CN = anna")


def test_end_is_what_the_certificate_says(operator: Operator, module: ModuleType) -> None:
    ends = operator.make(days=30)["ends"]
    certificate, _ = module.client_of(operator.path.read_text())
    start, end = module.lifetime(certificate)
    assert (ends, end - start) == (end, 30 * DAY_SECONDS)


def test_second_run_changes_nothing(operator: Operator) -> None:
    operator.make()
    before = operator.path.read_text()
    assert operator.requested() == {"changed": False, "why": "", "request": ""}
    again = operator.module.present(operator.path, operator.params)
    assert (again["changed"], operator.path.read_text()) == (False, before)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"user": "otto"}, "user, server or CA is another one"),
        ({"cluster": "jetson-2"}, "user, server or CA is another one"),
    ],
)
def test_file_for_something_else_is_made_anew(operator: Operator, changes: dict[str, Any], why: str) -> None:
    operator.make()
    found = operator.requested(**changes)
    assert (found["why"], "BEGIN CERTIFICATE REQUEST" in found["request"]) == (why, True)


def test_certificate_is_renewed_at_half_its_time(operator: Operator, module: ModuleType) -> None:
    operator.make(days=10)
    text, params = operator.path.read_text(), operator.params
    start, end = module.lifetime(module.client_of(text)[0])
    assert module.outdated(text, params, start + 0.4 * (end - start)) == ""
    assert module.outdated(text, params, start + 0.6 * (end - start)) == (
        "half of its certificate's time is over"
    )


def test_damaged_file_is_made_anew(operator: Operator, module: ModuleType) -> None:
    operator.path.write_text(module.HEADER + "users: []\n")
    assert operator.requested()["why"] == "it is damaged"


def test_certificate_that_the_server_does_not_take_any_more_is_made_anew(operator: Operator) -> None:
    operator.make()
    operator.api.refuses = True
    assert operator.requested()["why"] == "the server does not take its certificate any more"


def test_file_of_somebody_else_is_refused_and_stays(operator: Operator, module: ModuleType) -> None:
    operator.path.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(module.KubeconfigError, match=r"this role has not written it\. Name another file"):
        operator.requested()
    assert operator.path.read_text() == "apiVersion: v1\nkind: Config\n"


def test_check_mode_says_why_and_makes_no_key(operator: Operator) -> None:
    found = operator.requested(check_mode=True)
    assert found == {"changed": True, "why": "there is none", "request": ""}
    assert list(operator.scratch.iterdir()) == []


def test_file_that_does_not_work_does_not_take_the_place_of_one_that_does(
    operator: Operator, module: ModuleType, monkeypatch: pytest.MonkeyPatch
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


def test_server_that_is_not_reached_is_told_before_anything_is_made(
    operator: Operator, module: ModuleType
) -> None:
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"server": "https://127.0.0.1:1"}, "Say by kubeconfig_server under which name"),
        ({"server": operator.api.url.replace("127.0.0.1", "localhost")}, "belongs into its tls-san"),
        ({"ca": operator.api.client_ca.cert.read_text()}, "does not fit"),
    )
    for change, words in changes:
        with pytest.raises(module.KubeconfigError, match=words):
            operator.requested(**change)
    assert list(operator.scratch.iterdir()) == []


def test_openssl_that_is_not_there_is_named(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(module.KubeconfigError, match="has no openssl command"):
        module.make_request("anna", tmp_path)


def test_permissions_are_compared_one_by_one(module: ModuleType) -> None:
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

    user: ModuleType
    signs: bool = True
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take kubectl's place."""
        for name in ("run", "get", "listed", "wait_until"):
            monkeypatch.setattr(self.user, name, getattr(self, name))

    def run(self, *argv: str, stdin: str = "") -> str:
        match argv:
            case ("create", *_):
                made = json.loads(stdin)
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
def kubectl(user: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    made = Kubectl(user)
    made.install(monkeypatch)
    for name in ("view", "edit", "system:node"):
        made.objects["clusterrole", name] = {"metadata": {"name": name}, "rules": VIEW}
    return made


def test_request_is_signed_by_the_clients_signer_and_removed(user: ModuleType, kubectl: Kubectl) -> None:
    assert user.signed("anna", "CSR", 86400, 1) == "PEM"
    assert kubectl.log == ["create jetson-k3s-x7", "delete jetson-k3s-x7"]
    spec = user.request_object("anna", "CSR", 86400)["spec"]
    assert (spec["signerName"], spec["expirationSeconds"], spec["usages"]) == (
        "kubernetes.io/kube-apiserver-client",
        86400,
        ["client auth"],
    )


def test_refusal_to_sign_is_told_and_leaves_nothing(user: ModuleType, kubectl: Kubectl) -> None:
    kubectl.signs = False
    with pytest.raises(user.UserError, match="the cluster does not sign: no such signer"):
        user.signed("anna", "CSR", 86400, 1)
    assert kubectl.log[-1] == "delete jetson-k3s-x7"


def test_role_that_is_not_there_is_refused_with_those_that_are(user: ModuleType, kubectl: Kubectl) -> None:
    assert user.rules_of("view") == VIEW
    with pytest.raises(user.UserError, match=r"no ClusterRole viewer\. It has edit, view\. Nothing was made"):
        user.rules_of("viewer")


def test_user_is_bound_once_and_to_another_role_by_another_binding(
    user: ModuleType, kubectl: Kubectl
) -> None:
    changed = [user.bind("anna", role, "present", False) for role in ("view", "view", "edit")]
    assert changed == [True, False, True]
    (ours,) = kubectl.listed("clusterrolebindings")
    assert ours == user.binding("anna", "edit")
    assert [user.bind("anna", None, "absent", False) for _ in range(2)] == [True, False]


def test_check_mode_binds_nobody(user: ModuleType, kubectl: Kubectl) -> None:
    assert user.bind("anna", "view", "present", True) is True
    assert kubectl.log == []


def test_binding_of_that_name_that_is_not_ours_is_refused(user: ModuleType, kubectl: Kubectl) -> None:
    theirs = user.binding("anna", "admin")
    theirs["metadata"]["labels"] = {}
    kubectl.objects["clusterrolebinding", "jetson-k3s:anna"] = theirs
    for state in ("present", "absent"):
        with pytest.raises(user.UserError, match="is not ours"):
            user.bind("anna", "view", state, False)


def test_bindings_of_others_are_named(user: ModuleType) -> None:
    theirs = user.binding("anna", "admin")
    theirs["metadata"] = {"name": "admins", "namespace": "team-a"}
    theirs["kind"] = "RoleBinding"
    found = user.others("anna", [user.binding("anna", "view"), theirs, user.binding("otto", "view")])
    assert found == ["RoleBinding team-a/admins (ClusterRole admin)"]


# SIMULATED: the server's part of the role k3s.
SIGNS = """
- ansible.builtin.copy: {{content: "{{{{ k3s_user_request }}}}", dest: "{here}/request", mode: "0600"}}
  changed_when: false
  when: &asked k3s_user_request | default('') != ''
- ansible.builtin.command:
    cmd: openssl x509 -req -in request -CA client-ca.crt -CAkey client-ca.key -set_serial 7 -days 30
    chdir: "{here}"
  register: signed
  changed_when: false
  when: *asked
- ansible.builtin.set_fact:
    k3s_user_found:
      api: {{url: "{url}", ca: "{{{{ lookup('ansible.builtin.file', '{here}/server-ca.crt') }}}}"}}
      rules: {rules}
      others: [ClusterRoleBinding admins (ClusterRole admin)]
      certificate: "{{{{ signed.stdout | default('') }}}}"
"""


def test_role_makes_the_file_on_this_computer_once(tmp_path: Path) -> None:
    api = Api(tmp_path)
    user, defaults = tmp_path / "roles/k3s/tasks/user.yml", tmp_path / "roles/k3s/defaults/main.yml"
    for path in (user, defaults):
        path.parent.mkdir(parents=True)
    user.write_text(SIGNS.format(here=tmp_path, url=api.url, rules=json.dumps(VIEW)))
    defaults.write_text(
        "k3s_server_host: s\nk3s_server_url: \"https://{{ '127.0.0.1' | k3s_url_host }}:6443\"\n"
    )
    for part in ("k3s/filter_plugins", "kubeconfig", "atomic_files", "preflight"):
        shutil.copytree(CHECKOUT / "roles" / part, tmp_path / "roles" / part)
    plays = yaml.safe_load((CHECKOUT / "playbooks/kubeconfig.yml").read_text())
    (tmp_path / "play.yml").write_text(
        yaml.safe_dump([one | {"become": False, "gather_facts": False} for one in plays], sort_keys=False)
    )
    settings = f"ansible_connection=local ansible_python_interpreter={sys.executable}"
    (tmp_path / "inventory").write_text(f"[server]\ns {settings}\n")
    path = tmp_path / "anna.yaml"
    given = {"kubeconfig_user": "anna", "kubeconfig_file": str(path)}

    def run(*arguments: str, **variables: Any) -> tuple[str, int]:
        extra = f"--extra-vars={json.dumps(given | variables)}"
        ran = play(
            tmp_path / "inventory",
            tmp_path / "play.yml",
            extra,
            *arguments,
            ANSIBLE_ROLES_PATH=str(tmp_path / "roles"),
            TMPDIR=str(tmp_path / "tmp"),
        )
        recap = re.search(r"changed=(\d+) .*failed=(\d+)", ran.stdout)
        assert recap is not None, ran.stdout
        assert int(recap[2]) == (ran.returncode != 0), ran.stdout
        return " ".join(ran.stdout.split()), int(recap[1]) if ran.returncode == 0 else -1

    (tmp_path / "tmp").mkdir()
    assert run("--check")[1] == 1
    assert not path.exists()
    said, changed = run(kubeconfig_days=90)
    assert changed == 1, said
    assert f"{path} lets anna in as view, until" in said
    assert (
        "(30 days). Asked for were 90 days, but the server decides. It was made, because there is none."
        in said
    )
    assert "bound by others as well: ClusterRoleBinding admins (ClusterRole admin)." in said
    assert run()[1] == 0
    for wrong in ({"kubeconfig_user": "system:admin"}, {"kubeconfig_user": "a/b"}, {"kubeconfig_days": 0}):
        assert "Nothing was made" in run(**wrong)[0]
    # The key is nowhere but in the file.
    assert not [one for one in (tmp_path / "tmp").rglob("*") if "kubeconfig." in one.name]
    api.server.shutdown()
    api.server.server_close()
