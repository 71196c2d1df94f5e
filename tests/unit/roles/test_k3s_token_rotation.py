# SPDX-License-Identifier: Apache-2.0
"""Another server token: asked for by K3s' own request, and nothing is lost where a run is cut off.

The server is a fake, over TLS on loopback.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles import certs
from tests.unit.roles.conftest import Serve
from tests.unit.roles.fake_k3s import Server, basic
from tests.unit.roles.loading import load

rotation = load("k3s/library/k3s_token_rotation.py")
ca = load("k3s/module_utils/k3s_ca.py")
OLD, NEW = "an-old-token-of-the-server", "a-new-token-of-the-server"
Ensure = Callable[..., bool]


class K3s(Server):
    """SIMULATED: what K3s does when its token is changed (its pkg/server/handlers)."""

    def __init__(self, directory: Path) -> None:
        own = certs.authority("k3s-server-ca@1")
        super().__init__(own, own.pem, (basic(OLD, "server"),))
        self.file = directory / "server/token"
        own.write(directory / "server/tls", "server-ca")
        self.write(OLD)

    def write(self, password: str) -> None:
        """Write the token in its full form, with the newline that the file ends with."""
        self.file.write_text(f"K10{ca.bundle_hash(self.bundle)}::server:{password}\n")

    def put(self, path: str, body: bytes) -> int:
        """Write the new token into the file now; nodes need it from the next start on."""
        assert path == "/v1-k3s/token"
        self.write(json.loads(body)["newToken"] or secrets.token_hex(16))
        return 200


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve) -> dict[str, Any]:
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


def current(board: dict[str, Any]) -> str:
    return (Path(board["record"]).parent / "server/token").read_text().strip()


@pytest.fixture
def ensure(board: dict[str, Any]) -> Ensure:
    def run(check_mode: bool = False, **changes: Any) -> bool:
        return bool(rotation.ensure_rotated(board | changes, current(board), check_mode))

    return run


def test_server_makes_a_token_and_the_old_one_is_kept(board: dict[str, Any], ensure: Ensure) -> None:
    old = current(board)
    assert ensure() is True
    assert rotation.secret(current(board)) != OLD
    record = Path(board["record"])
    assert (record.read_text().strip(), record.stat().st_mode & 0o777) == (old, 0o600)
    assert Path(board["marker"]).exists()
    # The same command again, with nothing left to change.
    assert ensure() is False
    kept = rotation.close(board["record"], current(board))
    assert Path(kept).read_text().strip() == old
    assert not record.exists()
    assert rotation.close(board["record"], current(board)) == ""


def test_given_token_is_changed_to_once(board: dict[str, Any], ensure: Ensure) -> None:
    assert [ensure(token=NEW), ensure(token=NEW)] == [True, False]
    assert rotation.secret(current(board)) == NEW
    assert ensure(token=current(board)) is False


def test_run_that_was_cut_off_before_the_change_makes_it(board: dict[str, Any], ensure: Ensure) -> None:
    Path(board["record"]).write_text(current(board) + "\n")
    assert ensure() is True


def test_check_mode_changes_nothing(board: dict[str, Any], ensure: Ensure) -> None:
    old = current(board)
    assert ensure(check_mode=True) is True
    assert current(board) == old
    assert not Path(board["record"]).exists()
    assert not Path(board["marker"]).exists()


@pytest.mark.parametrize(
    ("url", "words"), [("https://127.0.0.1:1", "no K3s answers"), (None, "HTTP status 401")]
)
def test_server_that_does_not_change_it_is_left_as_it_was(
    board: dict[str, Any], ensure: Ensure, url: str | None, words: str
) -> None:
    if url is None:  # K3s was not started since its token was changed by hand
        token = Path(board["record"]).parent / "server/token"
        token.write_text(token.read_text().replace(OLD, "changed-by-hand"))
    with pytest.raises(rotation.RotationError, match=words):
        ensure(**({"url": url} if url else {}))
    assert not Path(board["record"]).exists()
    assert not Path(board["marker"]).exists()


@pytest.mark.parametrize(
    "version", ["v1.24.17+k3s1", "v1.25.4+k3s1", "v1.26.9+k3s1", "v1.28.2+k3s1", "unknown"]
)
def test_k3s_that_cannot_is_told(board: dict[str, Any], ensure: Ensure, version: str) -> None:
    with pytest.raises(rotation.RotationError, match=r"cannot change its token\. 1\.25\.15, 1\.26\.10, "):
        ensure(version=version, check_mode=True)
    assert not Path(board["marker"]).exists()


@pytest.mark.parametrize("version", ["v1.25.15+k3s1", "v1.28.15+k3s1", "v1.29.0+k3s1"])
def test_k3s_that_can_changes_it(ensure: Ensure, version: str) -> None:
    assert ensure(version=version) is True


@pytest.mark.parametrize("text", ["", "two words", "K10short::server:x"])
def test_malformed_token_is_refused_without_repeating_it(ensure: Ensure, text: str) -> None:
    with pytest.raises(rotation.RotationError, match="k3s_token is malformed") as refused:
        ensure(token=text)
    assert not text or text not in str(refused.value)


def test_token_of_another_cluster_is_refused(ensure: Ensure) -> None:
    with pytest.raises(rotation.RotationError, match="of another cluster"):
        ensure(token=f"K10{'0' * 64}::server:{NEW}")


def test_token_in_the_owners_configuration_stops_it(
    board: dict[str, Any], ensure: Ensure, tmp_path: Path
) -> None:
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
