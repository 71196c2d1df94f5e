# SPDX-License-Identifier: Apache-2.0
"""New CAs, signed by the old CAs, later without them, taken by K3s' own command. A cut-off run loses nothing.

The server is a fake.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_ca_rotation as module
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.roles import certs
from tests.unit.roles.conftest import Serve

VERSION = "v1.33.5+k3s1"
# Below server/tls, what `k3s certificate rotate-ca` takes (pkg/daemons/config/types.go).
CA_FILES = (
    "server-ca.crt", "server-ca.key", "client-ca.crt", "client-ca.key",
    "request-header-ca.crt", "request-header-ca.key", "etcd/server-ca.crt", "etcd/server-ca.key",
    "etcd/peer-ca.crt", "etcd/peer-ca.key", "service.key",
)  # fmt: skip


class RefusedError(Exception):
    """K3s does not take the CAs."""


class Port(BaseHTTPRequestHandler):
    """SIMULATED: port 6443 of a K3s server, which wants to know who asks."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Board:
    """A board with a SIMULATED K3s server, and the module that runs there; files are below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.staged = directory / "server/jetson-k3s-rotate-ca"
        self.tls = directory / "server/tls"
        for name in ("server-ca", "client-ca"):
            certs.authority(f"k3s-{name}@{int(time.time())}").write(self.tls, name)
        (self.tls / "service.key").write_text("a signing key\n")
        self._waiting: dict[str, bytes] = {}
        marker = str(directory / "run/k3s.restart")
        self.params: dict[str, Any] = {"wanted": "changed", "url": "https://127.0.0.1:6443", "marker": marker}
        self.refusal = ""

    @property
    def ca(self) -> bytes:
        return (self.tls / "server-ca.crt").read_bytes()

    def served(self) -> bytes:
        """A certificate of the server by its present CA, and the CA's behind it."""
        return certs.certificate("serving", self._issuing()).pem + self.ca

    def listen(self, serve: Serve) -> None:
        """Answer at a port with a certificate of the present CA, as K3s does once it has renewed it."""
        self.params["url"] = serve(Port, certs.certificate("k3s", self._issuing(), organization="k3s"))

    def _issuing(self) -> certs.Pair:
        key = serialization.load_pem_private_key((self.tls / "server-ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        name = x509.load_pem_x509_certificate(self.ca).subject.rfc4514_string().removeprefix("CN=")
        return certs.Pair(name, key, self.ca)

    def start(self) -> None:
        """Use what was brought since, as a start of K3s does."""
        for name, content in self._waiting.items():
            (self.tls / name).write_bytes(content)
        self._waiting = {}

    def rotate_ca(self) -> None:
        """Keep new CAs until the next start. Raises RefusedError for what would not work."""
        new = {name: self.staged / "tls" / name for name in CA_FILES if (self.staged / "tls" / name).exists()}
        for name in (file.removesuffix("-ca.crt") for file in new if file.endswith(".crt")):
            check(name, self.tls, self.staged / "tls")
        if (self.tls / "service.key").read_bytes() not in new["service.key"].read_bytes():
            raise RefusedError("old ServiceAccount signing key not in new ServiceAccount key list")
        self._waiting = {name: file.read_bytes() for name, file in new.items()}

    def run(self, argv: list[str], cwd: str | None = None, data: str | None = None) -> tuple[int, str, str]:
        """AnsibleModule's run_command; K3s is the fake."""
        if argv[0] != module.K3S:
            done = subprocess.run(argv, cwd=cwd, input=data, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr
        options = [f"--path={self.staged}", f"--server={self.params['url']}"]
        assert argv[1:] == ["certificate", "rotate-ca", *options]
        if self.refusal:
            return 1, "", self.refusal
        try:
            self.rotate_ca()
        except RefusedError as error:
            return 1, "", str(error)
        return 0, "", ""

    def rotation(self) -> Any:
        return module.Rotation(str(self.directory / "server"), self.run)

    def ensure(self, check_mode: bool = False, version: str = VERSION, **changes: Any) -> tuple[bool, bool]:
        """Run the module's work, as Ansible would: does it begin, is there something to close."""
        params = self.params | {"version": version} | changes
        begins, changed = module.ensure_rotated(self.rotation(), params, check_mode)
        return begins, changed

    def change(self, **changes: Any) -> None:
        assert self.ensure(**changes) == (True, True)
        self.start()
        assert self.rotation().close() is True


@pytest.fixture
def server(tmp_path: Path) -> Board:
    return Board(tmp_path)


def leads_to(certificate: bytes, roots: bytes, between: bytes) -> bool:
    """Say whether OpenSSL comes from a certificate to one of the roots, by others that are between."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, pem in {"roots": roots, "between": between, "certificate": certificate}.items():
            Path(scratch, name).write_bytes(pem)
        command = "openssl verify -CAfile roots -untrusted between certificate"
        done = subprocess.run(command.split(), cwd=scratch, capture_output=True, check=False)
        return done.returncode == 0


def check(name: str, before: Path, after: Path) -> None:
    """Refuse a CA that those who trust the old one do not trust, or whose key is another one."""
    old = (before / f"{name}-ca.crt").read_bytes()
    bundle, key = (after / f"{name}-ca.{kind}" for kind in ("crt", "key"))
    found = certs.split(bundle.read_bytes())
    if len(found) < 2:
        raise RefusedError(f"{name}: new CA bundle contains only a single certificate")
    # OpenSSL would end at a new root; K3s passes it over.
    between = b"".join(one for one in found if not leads_to(one, one, one))
    if not leads_to(found[0], old, between):
        raise RefusedError(f"{name}: new CA cert cannot be verified using old CA chain")
    own = serialization.load_pem_private_key(key.read_bytes(), None).public_key()
    if x509.load_pem_x509_certificate(found[0]).public_key() != own:
        raise RefusedError(f"{name}: new CA cert and key cannot be loaded as X590KeyPair")


def trusts(cafile: bytes, served: bytes) -> bool:
    """Does OpenSSL with these CAs take a certificate that is served with its chain?"""
    return leads_to(certs.split(served)[0], cafile, served)


def test_new_ca_is_trusted_by_who_knows_the_old_one_and_takes_what_it_has_signed(server: Board) -> None:
    """Also after a second change, and by OpenSSL, which takes the first issuer that fits."""
    states = [(server.ca, server.served())]
    for wanted in ("changed", "again"):
        server.change(wanted=wanted)
        states.append((server.ca, server.served()))
    assert len({certs.split(bundle)[0] for bundle, _ in states}) == 3, "each has another CA"
    assert all(trusts(cas, served) for cas, _ in states for _, served in states)
    # What was signed without its chain, as for a user, is taken on as well.
    assert trusts(states[2][0], certs.split(states[1][1])[0])
    for bundle, _ in states:
        found = certs.split(bundle)
        assert len(found) == len(set(found))


def test_keys_are_roots_alone_and_that_of_the_root_is_nowhere(server: Board) -> None:
    server.ensure()
    assert server.staged.stat().st_mode & 0o777 == 0o700
    found = {
        path.relative_to(server.staged / "tls").as_posix(): path
        for path in server.staged.rglob("*")
        if path.is_file()
    }
    assert set(found) == {name for name in CA_FILES if (server.tls / name).exists()}
    assert {path.stat().st_mode & 0o777 for path in found.values()} == {0o600}
    assert found["server-ca.key"].read_text().count("BEGIN EC PRIVATE KEY") == 1
    assert found["service.key"].read_bytes() == (server.tls / "service.key").read_bytes()
    server.start()
    assert server.rotation().close() is True
    assert [path.name for path in (server.directory / "server").iterdir()] == ["tls"]


OTHERS = ("request-header", "etcd/server", "etcd/peer")


def add_others(server: Board) -> None:
    """The CAs of a server that has etcd."""
    for name in OTHERS:
        certs.authority(f"k3s-{name}-ca@1").write(server.tls / Path(name).parent, f"{Path(name).name}-ca")


def test_each_ca_of_k3s_gets_its_own(server: Board) -> None:
    add_others(server)
    server.rotation().stage("changed")
    subjects = set()
    for name in ("server", "client", *OTHERS):
        check(name, server.tls, server.staged / "tls")
        new = (server.staged / "tls" / f"{name}-ca.crt").read_bytes()
        subject = x509.load_pem_x509_certificate(new).subject.rfc4514_string()
        subjects.add(subject.partition("@")[0])
    names = ("server", "client", "request-header", "etcd-server", "etcd-peer")
    assert subjects == {f"CN=k3s-{name}-ca" for name in names}


def test_second_run_changes_nothing_unless_it_is_asked_to(server: Board) -> None:
    server.change()
    assert server.ensure() == (False, False)
    assert abs(server.rotation().since - time.time()) < 600
    assert server.ensure(check_mode=True, wanted="again") == (True, True)


def roots(bundle: bytes) -> list[bytes]:
    """The self-signed certificates to which a bundle's first one leads. Tokens have the hash of that root."""
    first, *others = certs.split(bundle)
    return [one for one in others if leads_to(one, one, one) and leads_to(first, one, one)]


def test_who_has_the_old_cas_keys_is_shut_out_and_tokens_stay(server: Board, serve: Serve) -> None:
    """The new CAs alone, also after two rotations, for each CA of K3s."""
    add_others(server)
    forged = [server.served()]
    for wanted in ("changed", "again"):
        server.change(wanted=wanted)
        forged.append(server.served())
    served, rotated = forged.pop(), server.ca
    assert server.rotation().trusts_replaced(str(server.directory / "server"))
    assert all(trusts(rotated, one) for one in forged)
    server.listen(serve)
    server.change(wanted="alone")
    assert trusts(server.ca, served)
    assert not any(trusts(server.ca, one) for one in forged)
    assert roots(server.ca) == roots(rotated)
    for name in ("server", "client", *OTHERS):
        first, *behind = certs.split((server.tls / f"{name}-ca.crt").read_bytes())
        assert behind == roots(first + b"".join(behind)), name
    assert not server.rotation().trusts_replaced(str(server.directory / "server"))
    assert server.ensure(wanted="alone") == (False, False)
    assert server.ensure() == (False, False)
    assert server.rotation().since


def test_cas_of_a_trust_that_ended_are_changed_again(server: Board, serve: Serve) -> None:
    server.change()
    server.listen(serve)
    server.change(wanted="alone")
    alone = server.ca
    server.change(wanted="again")
    assert trusts(alone, server.served())
    assert server.ca.endswith(alone)


def test_bundle_of_k3s_own_script_has_its_new_root_before_the_one_that_the_old_ca_signed(
    server: Board, serve: Serve
) -> None:
    """As contrib/util/rotate-default-ca-certs.sh makes it."""
    server.change()
    for name in ("server", "client"):
        path = server.tls / f"{name}-ca.crt"
        issuing, crossed, root, old = certs.split(path.read_bytes())
        path.write_bytes(issuing + root + crossed + old)
    issuing, root, *_ = certs.split(server.ca)
    server.listen(serve)
    server.change(wanted="alone")
    assert server.ca == issuing + root


def unchanged(server: Board, reason: str, **params: Any) -> None:
    """Check that K3s is not made to trust the new CAs alone, and that nothing was changed."""
    before = {path: path.is_file() and path.read_bytes() for path in server.directory.rglob("*")}
    with pytest.raises(module.RotationError, match=rf"(?s){reason}.*Nothing was changed"):
        server.ensure(wanted="alone", **params)
    assert {path: path.is_file() and path.read_bytes() for path in server.directory.rglob("*")} == before


@pytest.mark.parametrize("changed", ["", "server-ca", "client-ca"])
def test_cas_that_were_never_changed_are_not_trusted_alone(server: Board, changed: str) -> None:
    """Neither are those of which some were changed: K3s would refuse the others."""
    first = {path.stem: path.read_bytes() for path in server.tls.glob("*.crt")}
    server.change()
    for name in first.keys() - {changed}:
        (server.tls / f"{name}.crt").write_bytes(first[name])
    unchanged(server, r"never changed.*rotate_ca\.yml without jetson_k3s_confirm=rotate-ca-alone first")


def test_rotation_is_finished_before_the_new_cas_are_trusted_alone(server: Board) -> None:
    """Boards that were not gone through have certificates of the old CA."""
    server.ensure()
    for _ in ("K3s has not started", "K3s has them, and some boards do not"):
        unchanged(server, r"not finished.*rotate_ca\.yml without jetson_k3s_confirm=rotate-ca-alone first")
        server.start()
    assert server.rotation().close() is True


def test_new_cas_are_not_trusted_alone_while_the_port_has_a_certificate_of_the_old_one(
    server: Board, serve: Serve
) -> None:
    server.listen(serve)
    server.change()
    tls = module.SERVER_DIRECTORY + "/tls"
    commands = (
        f"sudo touch {tls}/dynamic-cert-regenerate; sudo k3s kubectl --namespace=kube-system delete secret "
        "k3s-serving; sudo systemctl restart k3s"
    )
    unchanged(server, f"still shows a certificate of the old CA at {server.params['url']} .*{commands}")
    unchanged(server, "still shows", check_mode=True)
    server.params["url"] = "https://127.0.0.1:1"
    with pytest.raises(OSError, match="Connection refused"):
        server.ensure(wanted="alone")
    assert not server.staged.exists()
    server.listen(serve)
    assert server.ensure(wanted="alone", check_mode=True) == (True, True)
    assert not server.staged.exists()


def test_end_of_the_trust_that_was_cut_off_goes_on(server: Board, serve: Serve) -> None:
    server.change()
    server.listen(serve)
    server.refusal = "cut off"
    with pytest.raises(module.RotationError, match=r"Its journal says why\. It said: cut off"):
        server.ensure(wanted="alone")
    server.refusal = ""
    assert server.ensure(wanted="alone") == (False, True)
    server.start()
    assert server.ensure(wanted="alone") == (False, False)
    assert server.rotation().close() is True
    assert len(certs.split(server.ca)) == 2


def test_run_that_was_cut_off_goes_on_with_the_same_cas(server: Board) -> None:
    server.refusal = "cut off"
    with pytest.raises(module.RotationError, match=r"Its journal says why\. It said: cut off"):
        server.ensure(wanted="again")
    assert Path(server.params["marker"]).exists(), "K3s may have got them"
    made, server.refusal = (server.staged / "tls/server-ca.crt").read_bytes(), ""
    with pytest.raises(module.RotationError, match="does not use the new CAs yet"):
        server.rotation().close()
    assert server.ensure(wanted="again") == (False, True)
    server.start()
    assert server.ca == made
    assert server.ensure(wanted="again") == (False, False)


def test_what_was_left_half_made_is_made_anew(server: Board) -> None:
    half = server.directory / "server/.jetson-k3s-rotate-ca/tls"
    half.mkdir(parents=True)
    (half / "server-ca.crt").write_text("half")
    assert server.ensure() == (True, True)
    assert not half.parent.exists()


def test_check_mode_changes_nothing(server: Board) -> None:
    before = sorted(server.directory.rglob("*"))
    assert server.ensure(check_mode=True) == (True, True)
    assert sorted(server.directory.rglob("*")) == before


@pytest.mark.parametrize("version", ["v1.28.14+k3s1", "v1.31.1+k3s1"])
def test_k3s_that_would_not_start_is_refused(server: Board, version: str) -> None:
    with pytest.raises(module.RotationError, match=r"does not start .*issues/11014.*playbooks/upgrade.yml"):
        server.ensure(version=version)
    assert server.ensure(check_mode=True, version="v1.31.10+k3s1") == (True, True)


@pytest.mark.parametrize("version", ["v1.23.17+k3s1", "v1.25.4+k3s1", "v1.26.2+k3s1"])
def test_k3s_that_takes_no_other_cas_is_told_before_anything_is_made(server: Board, version: str) -> None:
    before = sorted(server.directory.rglob("*"))
    with pytest.raises(module.RotationError, match=r"takes no other CAs\. 1\.24\.12, 1\.25\.8, 1\.26\.3"):
        server.ensure(version=version)
    assert sorted(server.directory.rglob("*")) == before


def test_ca_of_an_organisation_is_left_alone(server: Board) -> None:
    certs.authority("Example CA").write(server.tls, "server-ca")
    for wanted in ("changed", "alone"):
        with pytest.raises(module.RotationError, match="of your own organisation"):
            server.ensure(wanted=wanted)
    assert not server.staged.exists()


def test_failure_of_openssl_changes_nothing(server: Board) -> None:
    (server.tls / "server-ca.key").write_text("damaged")
    with pytest.raises(module.RotationError, match=r"(?s)openssl x509: .*Nothing was changed"):
        server.ensure()


def test_server_without_a_ca_is_named(server: Board) -> None:
    (server.tls / "server-ca.crt").unlink()
    with pytest.raises(module.RotationError, match="K3s has no CA yet"):
        server.ensure()
