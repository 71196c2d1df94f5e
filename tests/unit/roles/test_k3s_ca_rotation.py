# SPDX-License-Identifier: Apache-2.0
"""Other CAs: signed by those before, taken by K3s' own command, and nothing is lost where a run is cut off.

The server is a fake.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.roles import certs
from tests.unit.roles.conftest import Load
from tests.unit.roles.fake_rotation import CA_FILES, RefusedError, Server, ca_hash, check

TOKEN = "the-token-of-the-server"
VERSION = "v1.33.5+k3s1"


class Board(Server):
    """The server, with the module that is run on its board."""

    def __init__(self, module: ModuleType, directory: Path) -> None:
        super().__init__(directory, TOKEN)
        self.module = module
        marker = str(directory / "run/k3s.restart")
        self.params: dict[str, Any] = {"wanted": "changed", "url": self.serve(), "marker": marker}
        self.refusal = ""

    def run(self, argv: list[str], cwd: str | None = None) -> tuple[int, str, str]:
        """AnsibleModule's run_command; K3s is the fake."""
        if argv[0] != self.module.K3S:
            done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr
        assert argv[1:] == [
            "certificate",
            "rotate-ca",
            f"--path={self.directory}/server/jetson-k3s-rotate-ca",
            f"--server={self.params['url']}",
        ]
        if self.refusal:
            return 1, "", self.refusal
        try:
            self.rotate_ca(self.directory / "server/jetson-k3s-rotate-ca")
        except RefusedError as error:
            return 1, "", str(error)
        return 0, "", ""

    def rotation(self) -> Any:
        return self.module.Rotation(str(self.directory / "server"), self.run)

    def ensure(self, check_mode: bool = False, version: str = VERSION, **changes: Any) -> tuple[bool, bool]:
        """Run the module's work, as Ansible would."""
        begins, changed = self.module.ensure_rotated(
            self.rotation(), self.params | changes, version, check_mode
        )
        return begins, changed


@pytest.fixture
def server(load: Load, tmp_path: Path) -> Board:
    return Board(load("k3s/library/k3s_ca_rotation.py"), tmp_path)


def trusts(cafile: bytes, served: bytes) -> bool:
    """Does OpenSSL with these CAs take a certificate that is served with its chain?"""
    return certs.leads_to(certs.split(served)[0], cafile, served)


def test_new_ca_is_trusted_by_who_knows_the_old_one_and_takes_what_it_has_signed(server: Board) -> None:
    """Also after a second change, and by OpenSSL, which takes the first issuer that fits."""
    states = [(server.ca.cert.read_bytes(), server.serving().cert.read_bytes())]
    for wanted in ("changed", "again"):
        assert server.ensure(wanted=wanted) == (True, True)
        server.start()
        server.rotation().close()
        states.append((server.ca.cert.read_bytes(), server.serving().cert.read_bytes()))
    assert len({certs.split(bundle)[0] for bundle, _ in states}) == 3, "each has another CA"
    assert all(trusts(cas, served) for cas, _ in states for _, served in states)
    # What was signed without its chain, as for a user, is taken on as well.
    assert trusts(states[2][0], certs.split(states[1][1])[0])
    for bundle, _ in states:
        found = certs.split(bundle)
        assert len(found) == len(set(found))


def test_keys_are_roots_alone_and_that_of_the_root_is_nowhere(server: Board) -> None:
    server.ensure()
    staged = server.directory / "server/jetson-k3s-rotate-ca"
    assert staged.stat().st_mode & 0o777 == 0o700
    found = {path.relative_to(staged).as_posix(): path for path in staged.rglob("*") if path.is_file()}
    assert set(found) == {f"tls/{name}" for name in CA_FILES if (server.tls / name).exists()}
    assert {path.stat().st_mode & 0o777 for path in found.values()} == {0o600}
    assert found["tls/server-ca.key"].read_text().count("BEGIN EC PRIVATE KEY") == 1
    assert found["tls/service.key"].read_bytes() == (server.tls / "service.key").read_bytes()
    server.start()
    assert server.rotation().close() is True
    assert sorted(path.name for path in (server.directory / "server").iterdir()) == ["tls", "token"]


def test_each_ca_of_k3s_gets_its_own(server: Board) -> None:
    others = ("request-header", "etcd/server", "etcd/peer")
    for name in others:
        certs.authority(server.tls / Path(name).parent, f"{Path(name).name}-ca")
    server.rotation().stage("changed")
    staged = server.directory / "server/jetson-k3s-rotate-ca/tls"
    subjects = set()
    for name in ("server", "client", *others):
        new, old = (tls / f"{name}-ca.crt" for tls in (staged, server.tls))
        check(name, old.read_bytes(), certs.Pair(new, new.with_suffix(".key")))
        subjects.add(certs.openssl("x509", "-noout", "-subject", "-in", new).decode().partition("@")[0])
    assert subjects == {
        f"subject=CN = k3s-{name}-ca"
        for name in ("server", "client", "request-header", "etcd-server", "etcd-peer")
    }


def test_second_run_changes_nothing_unless_it_is_asked_to(server: Board) -> None:
    server.ensure()
    server.start()
    server.rotation().close()
    assert server.ensure() == (False, False)
    assert abs(server.rotation().since - time.time()) < 600
    assert server.ensure(check_mode=True, wanted="again") == (True, True)


def test_old_ca_is_taken_away_and_tokens_stay(server: Board) -> None:
    old_served = server.serving().cert.read_bytes()
    with pytest.raises(server.module.RotationError, match="were never changed"):
        server.ensure(wanted="alone")
    server.ensure()
    server.start()
    server.rotation().close()
    both, served = server.ca.cert.read_bytes(), server.serving().cert.read_bytes()
    with pytest.raises(server.module.RotationError, match="still shows a certificate of the old CA"):
        server.ensure(wanted="alone")
    server.params["url"] = server.serve()
    assert server.ensure(wanted="alone") == (True, True)
    server.start()
    server.rotation().close()
    alone = server.ca.cert.read_bytes()
    assert len(certs.split(alone)) == 2
    assert trusts(alone, served)
    assert not trusts(alone, old_served)
    assert ca_hash(alone) == ca_hash(both)
    assert server.ensure(wanted="alone") == (False, False)
    assert server.ensure() == (False, False)


def test_run_that_was_cut_off_goes_on_with_the_same_cas(server: Board) -> None:
    server.refusal = "cut off"
    with pytest.raises(server.module.RotationError):
        server.ensure(wanted="again")
    assert Path(server.params["marker"]).exists(), "K3s may have got them"
    staged = server.directory / "server/jetson-k3s-rotate-ca/tls/server-ca.crt"
    made, server.refusal = staged.read_bytes(), ""
    with pytest.raises(server.module.RotationError, match="does not use the new CAs yet"):
        server.rotation().close()
    assert server.ensure(wanted="again") == (False, True)
    server.start()
    assert server.ca.cert.read_bytes() == made
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
    with pytest.raises(
        server.module.RotationError, match=r"does not start .*issues/11014.*playbooks/upgrade.yml"
    ):
        server.ensure(version=version)
    assert server.ensure(check_mode=True, version="v1.31.10+k3s1") == (True, True)


@pytest.mark.parametrize("version", ["v1.23.17+k3s1", "v1.25.4+k3s1", "v1.26.2+k3s1"])
def test_k3s_that_takes_no_other_cas_is_told_before_anything_is_made(server: Board, version: str) -> None:
    before = sorted(server.directory.rglob("*"))
    with pytest.raises(
        server.module.RotationError, match=r"takes no other CAs\. 1\.24\.12, 1\.25\.8, 1\.26\.3"
    ):
        server.ensure(version=version)
    assert sorted(server.directory.rglob("*")) == before


def test_ca_of_an_organisation_is_left_alone(server: Board) -> None:
    certs.openssl(
        "req", "-x509", "-new", "-key", server.ca.key, "-subj", "/CN=Example CA", "-out", server.ca.cert
    )  # fmt: skip
    with pytest.raises(server.module.RotationError, match="of your own organisation"):
        server.ensure()
    assert not (server.directory / "server/jetson-k3s-rotate-ca").exists()


def test_k3s_that_does_not_take_them_says_so(server: Board) -> None:
    server.refusal = "see server log for details: 500 Internal Server Error"
    with pytest.raises(server.module.RotationError, match=r"Its journal says why\. It said: see server log"):
        server.ensure()


def test_openssl_that_fails_is_told(server: Board) -> None:
    server.ca.key.write_text("damaged")
    with pytest.raises(server.module.RotationError, match=r"(?s)openssl x509: .*Nothing was changed"):
        server.ensure()


def test_server_that_has_not_started_is_named(server: Board) -> None:
    server.ca.cert.unlink()
    with pytest.raises(server.module.RotationError, match="K3s has no CA yet"):
        server.ensure()


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("k3s version v1.33.5+k3s1 (1234)", VERSION),
        ("k3s version v1.25.4+k3s1 (x)", "v1.25.4+k3s1"),
    ],
)
def test_version_is_read(load: Load, said: str, version: str) -> None:
    module = load("k3s/library/k3s_ca_rotation.py")
    assert module.installed(lambda _argv: (0, said, "")) == version
    with pytest.raises(module.RotationError, match="does not say which K3s"):
        module.installed(lambda _argv: (0, "", ""))
