# SPDX-License-Identifier: Apache-2.0
"""When K3s' certificates and tokens end: read on a board, judged, and shown."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles import certs
from tests.unit.roles.loading import load

board = load("jetson_facts/module_utils/jetson_certificates.py")
filters = load("k3s/filter_plugins/k3s_certificates.py")
status = load("gpu_status/filter_plugins/gpu_status_credentials.py")

DAY = 86400
NOW = 1_800_000_000.0
NEW = "v1.33.5+k3s1"


def data_directory(root: Path) -> Path:
    """A server's, as K3s leaves it; what is signed is valid for 30 days."""
    home = root / "var/lib/rancher/k3s"
    tls = home / "server/tls"
    ca = certs.authority("server-ca")
    ca.write(tls, "server-ca")
    signed = certs.certificate("client", ca, days=30)
    # The last is left by a release that called it so.
    for name in ("client-admin", "etcd/client", "client-cloud-controller"):
        signed.write(tls / Path(name).parent, Path(name).name, ca.pem)
    listener = certs.certificate("a", ca, days=30)
    listener.write(home / "agent", "serving-kubelet", ca.pem)
    pem = base64.b64encode(listener.pem + ca.pem).decode()
    (tls / "dynamic-cert.json").write_text(json.dumps({"data": {"tls.crt": pem}}))
    (home / "agent/client-kubelet.crt").write_text("damaged")
    return home


def test_certificates_of_a_server_are_read(tmp_path: Path) -> None:
    home = data_directory(tmp_path)
    found = board.files(str(home), is_server=True)
    kinds = {one["name"]: one["kind"] for one in found}
    assert kinds == {
        "client-admin": "leaf",
        "etcd-client": "leaf",
        "serving-kubelet": "leaf",
        "dynamic-cert": "listener",
        "server-ca": "ca",
    }
    days = {one["name"]: round((one["ends"] - time.time()) / DAY) for one in found}
    assert (days["client-admin"], days["dynamic-cert"], days["server-ca"]) == (30, 30, 3650)
    assert found[-1]["name"] == "server-ca", "the soonest end first"


def test_what_a_server_has_left_on_an_agent_is_not_looked_at(tmp_path: Path) -> None:
    home = data_directory(tmp_path)
    assert [one["name"] for one in board.files(str(home), is_server=False)] == ["serving-kubelet"]


def test_data_directory_and_days_are_the_nodes_own(tmp_path: Path) -> None:
    home = data_directory(tmp_path)
    (tmp_path / "mnt").mkdir()
    home.rename(tmp_path / "mnt/k3s")
    unit = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": "1"}
    variables = {board.VALID_DAYS_VARIABLE: "30"}
    assert board.certificate_facts(str(tmp_path), {}, unit, variables, True)["files"] == []
    found = board.certificate_facts(str(tmp_path), {"data-dir": "/mnt/k3s"}, unit, variables, True)
    assert len(found["files"]) == 5
    assert found["valid_days"] == 30
    assert found["started"] == pytest.approx(time.time() - time.monotonic(), abs=5)


@pytest.mark.parametrize(
    "unit",
    [{}, {"ActiveState": "inactive", "ExecMainStartTimestampMonotonic": "7"}, {"ActiveState": "active"}],
)
def test_unit_that_does_not_run_has_no_start(unit: dict[str, str]) -> None:
    facts = board.certificate_facts("/nonexistent", {}, unit, {board.VALID_DAYS_VARIABLE: "?"}, False)
    assert facts == {"files": [], "started": None, "valid_days": 365}


@pytest.mark.parametrize(
    ("version", "days"),
    [
        ("v1.25.4+k3s1", 90),
        ("v1.30.12+k3s1", 90),
        ("v1.30.13+k3s1", 120),
        ("v1.32.4+k3s1", 90),
        ("v1.33.1+k3s1", 120),
        ("v1.34.0+k3s1", 120),
        ("v2.0.0", 120),
        (None, 90),
    ],
)
def test_window_is_that_of_the_release(version: str | None, days: int) -> None:
    assert filters.window_days(version) == days


def certificate(left: float, written: float = 300, kind: str = "leaf") -> dict[str, Any]:
    return {
        "name": "client-kubelet", "path": "/client-kubelet.crt", "kind": kind,
        "ends": NOW + left * DAY, "written": NOW - written * DAY,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "started", "valid_days", "due"),
    [
        (certificate(89), 300, 365, True),
        (certificate(-3), 300, 365, True),
        (certificate(100), 300, 365, True),  # the window of this release is 120 days
        (certificate(121), 300, 365, False),
        (certificate(89, kind="ca"), 300, 365, False),
        (certificate(89, kind="listener"), 300, 365, False),
        # It has started within the window and has not renewed it.
        (certificate(89), 5, 365, False),
        # Its start has made it: the next one makes it longer if that is what K3s is told by then.
        (certificate(29, written=1), 1.1, 365, True),
        # But not each run is to restart where certificates are to be short.
        (certificate(29, written=1), 1.1, 30, False),
        (certificate(14, written=16), 16.1, 30, True),
        # A K3s that does not run renews it when it is started.
        (certificate(1), None, 365, False),
    ],
)
def test_restart_is_due_where_it_renews(
    one: dict[str, Any], started: float | None, valid_days: int, due: bool
) -> None:
    since = None if started is None else NOW - started * DAY
    k3s = {"version": NEW, "certificates": {"files": [one], "started": since}}
    assert filters.expiring(k3s, valid_days, NOW) == ([one] if due else [])


def test_what_was_not_renewed_is_told() -> None:
    before, after = certificate(3), certificate(365)
    assert filters.not_renewed([before], [before | {"written": NOW}]) == [before]
    assert filters.not_renewed([before], [after]) == []
    assert filters.told([before]) == "client-kubelet (ends 2027-01-18)"


def facts(*found: tuple[str, float, str]) -> dict[str, Any]:
    files = [
        {"name": name, "path": f"/{kind}/{name}.crt", "kind": kind, "ends": NOW + left * DAY, "written": NOW}
        for name, left, kind in found
    ]
    return {
        "k3s": {"certificates": {"files": files}},
        "reboot": {"required": False, "packages": [], "kernel": None},
    }


@pytest.mark.parametrize(("left", "soon"), [(91, False), (89, True), (-1, True)])
def test_end_within_90_days_is_warned_of(left: int, soon: bool) -> None:
    found = status.credentials({"tokens": []}, ["a"], {"a": facts(("server-ca", left, "ca"))}, NOW)
    assert ("K3s does not renew a CA by itself" in status.table(found)) is soon


def test_token_is_told_without_its_secret() -> None:
    def encoded(**data: str) -> dict[str, str]:
        return {key.replace("_", "-"): base64.b64encode(text.encode()).decode() for key, text in data.items()}

    secret = {
        "data": encoded(token_id="q4bjus", token_secret="7k1x6b1fz0d72prp", expiration="2027-01-15T09:00:00Z")
    }
    observe = load("k3s/library/k3s_observe.py")
    assert observe.token_facts(secret) == {"id": "q4bjus", "ends": "2027-01-15T09:00:00Z", "description": ""}


def ca(path: str, digest: str, started: float | None = NOW) -> dict[str, Any]:
    file = {"path": f"/var/lib/rancher/k3s/{path}/server-ca.crt", "digest": digest}
    return {"certificates": {"files": [file], "started": started}}


@pytest.mark.parametrize(
    ("mine", "server", "other"),
    [
        (ca("agent", "new"), ca("server/tls", "new"), False),
        (ca("agent", "old"), ca("server/tls", "new"), True),
        (ca("agent", "old", started=None), ca("server/tls", "new"), False),
        (ca("agent", "old"), None, False),
        (ca("agent", "old"), ca("agent", "new"), False),
        (ca("server/tls", "old"), ca("server/tls", "new"), False),
    ],
)
def test_restart_is_due_where_the_server_has_other_cas(
    mine: dict[str, Any], server: dict[str, Any] | None, other: bool
) -> None:
    assert filters.other_ca(mine, server) is other


def test_bundles_are_told_apart_by_their_certificates(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    one.write_text("-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n-----END CERTIFICATE-----\n")
    same.write_text(one.read_text().replace("\n", "\r\n"))
    other.write_text(one.read_text() * 2)
    assert board.digest(str(one)) == board.digest(str(same)) != board.digest(str(other))
