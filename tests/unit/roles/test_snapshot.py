# SPDX-License-Identifier: Apache-2.0
"""Snapshots by playbook: what is replaced, what preflight says of one, and hostile boards and archives."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (
    snapshot_archive,
    snapshot_capture,
    snapshot_list,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.snapshot_archive import Snapshot
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.snapshot_redaction import Redaction
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import snapshot as plans

from tests import boards
from tests.ansible_core import CORES, core
from tests.docs import CHECKOUT
from tests.planted import JOURNAL, UNIT, leaked
from tests.unit.roles.places import Data
from tests.unit.roles.playing import Run, answer, play
from tests.unit.roles.scripted import AGENT, BOARDS, SERVER, play_scripted

KEY = bytes(16)
NAMES = ["jetson-1", "gw.example.net"]


def redaction(**given: Any) -> Redaction:
    return Redaction(**{"names": NAMES, "serials": ["1423000000000"], "key": KEY} | given)


IDENTITIES = {
    "the name jetson-1": "jetson-1",
    "JETSON-1: up": "JETSON-1",
    "https://gw.example.net:6443/x": "gw.example.net",
    "https://user@rancher.corp.internal/v3": "rancher.corp.internal",
    "pull registry at http://nas:5000/v2": "nas",
    "serial 1423000000000 found": "1423000000000",
    "androidboot.serialno=0421018": "0421018",
    'Serial Number: "PX-00171A"': "PX-00171A",
    "usb: SerialNumber: 47110815": "47110815",
    "link/ether 48:b0:2d:12:34:56 brd ff:ff:ff:ff:ff:ff": "48:b0:2d:12:34:56",
    "eth 48-B0-2D-12-34-56": "48-B0-2D-12-34-56",
    "interface enx48b02d123456 is up": "48b02d123456",
    "inet 192.168.17.23/24": "192.168.17.23",
    "dial tcp 10.1.2.3:6443: refused": "10.1.2.3",
    "from 203.0.113.9.": "203.0.113.9",
    "inet6 2003:e7:17::5/64": "2003:e7:17::5",
    "[fe80::4ab0:2dff:fe12:3456%eth0]": "4ab0:2dff:fe12:3456",
    "mail admin@corp.example about it": "admin@corp.example",
    "/home/ada/.kube/config": "ada",
    "root=PARTUUID=8aa5d01e-9a21-4b3c-8a0f-0123456789ab rw": "8aa5d01e-9a21-4b3c-8a0f-0123456789ab",
}


@pytest.mark.parametrize(("text", "identity"), IDENTITIES.items())
def test_identities_are_replaced_the_same_way_everywhere(text: str, identity: str) -> None:
    changed = redaction().text(f"a {text}\nb")
    assert identity.lower() not in changed.lower()
    assert changed.startswith("a ")
    assert changed.endswith("\nb")
    assert redaction().text(f"a {text}\nb") == changed
    assert redaction().text(changed) == changed or "." in identity or ":" in identity  # addresses again
    assert redaction().data({"k": [text]})["k"] == [changed[2:-2]]
    assert redaction(key=bytes([1]) * 16).text(f"a {text}\nb") != changed


KEPT = """\
L4T 36.4.3, kernel 5.15.148-tegra, Docker 27.5.1, version v1.36.5+k3s1, 12.6.1.4-1
image docker.io/rancher/mirrored-pause:3.6, https://registry-1.docker.io/v2/ and https://k3s.io/x
at 12:34:56, 2026-01-02T03:04:05Z, 127.0.0.1:6443, ::1, 0.0.0.0/0, 10.42.1.7, 10.43.0.1, 172.17.0.1
netmask 255.255.255.0
OF_FULLNAME=/bus@0/17000000.gpu sha256:0123456789abcdef 00:00:00:00:00:00 docker.service k3s server
nvidia,p3768-0000+p3767-0005 https://localhost:6443 kube-dns.kube-system.svc
"""


def test_what_identifies_nobody_stays() -> None:
    assert redaction().text(KEPT) == KEPT


def test_a_name_that_many_boards_have_stays() -> None:
    text = "ubuntu tegra-ubuntu jetson server localhost"
    assert redaction(names=text.split()).text(text) == text


ADDRESSES = ["192.168.1.1", "192.168.1.200", "192.168.2.1", "10.1.2.3", "10.200.0.1", "172.20.1.1", "8.8.8.8"]
NETWORKS = ["192.168.1.0/24", "192.168.0.0/22", "10.1.0.0/16", "10.0.0.0/8", "172.16.0.0/12", "8.8.0.0/16"]


def test_addresses_stay_in_their_networks() -> None:
    """Preflight compares networks, so it has to find the same overlaps."""
    one = redaction()
    changed = {text: one.text(text) for text in [*ADDRESSES, *NETWORKS]}
    for network in NETWORKS:
        other = ipaddress.ip_network(changed[network])
        assert other.prefixlen == ipaddress.ip_network(network).prefixlen
        for address in ADDRESSES:
            inside = ipaddress.ip_address(address) in ipaddress.ip_network(network)
            assert (ipaddress.ip_address(changed[address]) in other) is inside
    assert len(set(changed.values())) == len(changed)
    for text, other_text in changed.items():
        private = ipaddress.ip_network(text).is_private
        assert ipaddress.ip_network(other_text).is_private is private or not private
    assert [text for text in changed.values() if text.startswith(("10.42.", "10.43."))] == []


@pytest.mark.parametrize("text", [JOURNAL, UNIT])
def test_secrets_are_hidden_as_in_every_text_of_a_board(text: str) -> None:
    assert leaked(redaction().text(text)) == []


def test_random_texts_take_linear_time() -> None:
    for piece in ("1.", "a:", ":", "serial_", "-", "aa:", "a.", "://", "x@"):
        redaction().text(piece * 100_000)


def test_no_file_of_the_list_is_read_without_redaction_if_a_person_writes_it() -> None:
    raw = [pattern for files in snapshot_list.FILES if files.kind == "data" for pattern in files.patterns]
    assert [one for one in raw if not one.startswith(("/sys/", "/proc/")) and one not in KERNELS] == []


KERNELS = ("/etc/nv_tegra_release", "/var/lib/nvpmodel/status")


# Playbooks -----------------------------------------------------------------------------------------------


def taken(directory: Path) -> dict[str, Snapshot]:
    """{board: its snapshot} of a directory."""
    return {
        path.name.rpartition("-")[0]: snapshot_archive.load(str(path)) for path in directory.glob("*.tar.gz")
    }


# An error of this board, so that preflight stops there, and a warning with its name.
UNFIT = {"cgroup_lacks": {"memory": "not enabled"}, "hostname": "elsewhere"}


def test_preflight_says_of_a_snapshot_what_it_says_on_the_board(tmp_path: Path) -> None:
    given = {AGENT: {"jetson_facts": {"ansible_facts": {"jetson": UNFIT}}}}
    (tmp_path / "reports").mkdir()
    (tmp_path / f"reports/{AGENT}.json").write_text(json.dumps({"board": AGENT, "ok": True}))
    run, calls = play_scripted(
        tmp_path,
        CHECKOUT / "playbooks/snapshot.yml",
        f"--limit={AGENT}",
        answers=given,
        snapshot_directory=str(tmp_path / "taken"),
        gpu_verify_reports=str(tmp_path / "reports"),
        k3s_token=f"K10{'0' * 64}::server:planted-join-password",
    )
    assert {call.module for call in calls if call.board == AGENT} == {
        *("jetson_facts", "k3s_join_token", "snapshot")
    }
    (path,) = (tmp_path / "taken").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert str(path) in run.said
    found = snapshot_archive.load(str(path))
    findings = snapshot_archive.data_of(found, "findings")
    assert {"error"} <= {one["level"] for one in findings}
    everything = b"".join(found.contents.values()).decode() + json.dumps(found.manifest)
    assert [word for word in (AGENT, SERVER, "elsewhere", "id of", "planted") if word in everything] == []
    host = snapshot_archive.data_of(found, "run")["host"]
    assert snapshot_archive.data_of(found, "report") == {"board": host, "ok": True}

    checked = preflight(path, tmp_path)
    assert checked.returncode == 2
    said = [line.strip() for line in checked.stdout.splitlines()]
    for one in findings:
        assert any(one["id"] in line for line in said)
        for key in ("found", "expected", "fix"):
            assert " ".join(one[key].split()) in checked.said
    assert f"preflight found {len(findings)} problem" in checked.said


def preflight(path: Path, directory: Path, **environment: str) -> Run:
    """What `jetson-k3s preflight --from` runs."""
    extra = f"--extra-vars={json.dumps({'snapshot_file': str(path)})}"
    inventory = directory / "none.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {"localhost": {}}}}))
    return play(inventory, CHECKOUT / "playbooks/archived/preflight.yml", extra, **environment)


def test_check_mode_reads_the_board_and_writes_nothing(tmp_path: Path) -> None:
    _, calls = play_scripted(
        tmp_path, CHECKOUT / "playbooks/snapshot.yml", "--check", snapshot_directory=str(tmp_path / "taken")
    )
    assert {call.board for call in calls.of("snapshot")} == set(BOARDS)
    assert not (tmp_path / "taken").exists()


def test_a_hostile_archive_of_a_board_is_refused_and_not_written(tmp_path: Path) -> None:
    answers = {AGENT: {"snapshot": {"archive": base64.b64encode(b"\x1f\x8b" + bytes(100)).decode()}}}
    run, _ = play_scripted(
        tmp_path,
        CHECKOUT / "playbooks/snapshot.yml",
        answers=answers,
        snapshot_directory=str(tmp_path / "taken"),
        fails=True,
    )
    assert "The snapshot that the board has made was refused: it is damaged" in run.said
    assert taken(tmp_path / "taken").keys() == set(BOARDS) - {AGENT}


TOUCH = "{{ lookup('ansible.builtin.pipe', 'touch PLACE') }}"


def made(directory: Path, **data: Any) -> Path:
    """A snapshot with these data."""
    boards.build(boards.load()["orinnano-jp6"], directory / "host")
    packed = snapshot_capture.capture(str(directory / "host"), {"name": "test"})
    path = directory / "board.tar.gz"
    path.write_bytes(snapshot_archive.with_data(snapshot_archive.read(packed), data))
    return path


RUN: Data = {
    "address": "host-1",
    "bundle": {},
    "docker_plan": {},
    "host": "host-1",
    "k3s_plan": {},
    "node": "host-1",
    "nodes": [],
    "now": 1.0,
    "requests": "",
    "server": "host-1",
    "servers": ["host-1"],
    "settings": {},
}


@pytest.mark.parametrize("line", CORES)
@pytest.mark.parametrize("kind", ["texts", "keys"])
def test_no_text_of_a_hostile_archive_is_a_template(tmp_path: Path, line: str, kind: str) -> None:
    place = tmp_path / "touched"
    attack = TOUCH.replace("PLACE", str(place))
    everywhere: Any = {
        "settings": {"k3s_version": attack, "renames": attack, "api": attack, "config": {"a": attack}}
    }
    everywhere |= dict.fromkeys(("node", "server", "now", "requests"), attack)
    everywhere |= {"k3s_plan": {"settings": {"x": attack}}, "bundle": {"versions": {"k3s_version": attack}}}
    everywhere |= {
        "nodes": [{"item": "host-1", "installed": True, "version": attack, "nodes": [], "ranges": {}}]
    }
    facts: Data = {"model": attack, "hostname": attack, "docker": {"version": attack}, "arch": attack}
    if kind == "keys":
        facts = {attack: 1, "docker": {attack: 1}}
        everywhere = {"settings": {attack: 1}, "k3s_plan": {attack: attack}}
    path = made(tmp_path, facts=facts, findings=[], run=RUN | everywhere)
    other = core(line)
    environment = {"PYTHONPATH": str(other)} if other else {}
    run = preflight(path, tmp_path, **environment)
    assert run.returncode != 0
    assert not place.exists(), run.stdout
    assert "touch" not in run.said.partition("PLAY")[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"run": RUN}, "it has no facts: it was made by tegra-device-plugin capture"),
        ({"facts": "cannot gather facts", "run": RUN}, "it has no facts: cannot gather facts"),
        ({"facts": [], "run": RUN}, "its facts, findings or run have another form"),
        ({"facts": {}, "run": RUN | {"host": "{{ 1 }}"}}, "it names a board '{{ 1 }}'"),
        ({"facts": {}, "run": RUN | {"servers": ["localhost"]}}, "it names a board 'localhost'"),
        ({"facts": {}, "run": RUN | {"address": "{{ 1 }}"}}, "it has the address '{{ 1 }}'"),
        ({"facts": {}, "run": []}, "its facts, findings or run have another form"),
    ],
)
def test_a_snapshot_without_facts_or_with_wrong_ones_is_refused(
    data: Data, words: str, tmp_path: Path
) -> None:
    path = made(tmp_path, **data)
    said = answer("snapshot_file", {"path": str(path)})
    assert said["failed"]
    assert f"{path} was refused: " in said["msg"]
    assert words in said["msg"]


def test_the_module_captures_this_machine(tmp_path: Path) -> None:
    arguments = {"names": ["some-board"], "key": KEY.hex(), "tool": {"name": "test", "version": "1"}}
    said = answer("snapshot", arguments)
    assert not said["changed"]
    assert KEY.hex() not in json.dumps(said)
    manifest = snapshot_archive.read(base64.b64decode(said["archive"])).manifest
    assert manifest["root"] == "host"
    assert {one["name"] for one in manifest["programs"]} == {one.name for one in snapshot_list.PROGRAMS}


@pytest.mark.parametrize("check", [True, False])
def test_a_snapshot_that_cannot_be_written_is_named(check: bool, tmp_path: Path) -> None:
    archive = base64.b64encode(made(tmp_path).read_bytes()).decode()
    (tmp_path / "file").touch()
    path = tmp_path / "file/a.tar.gz"
    given = {"path": str(path), "archive": archive, "key": KEY.hex(), "_ansible_check_mode": check}
    said = answer("snapshot_file", given)
    assert said.get("failed", False) is not check
    assert check or said["msg"].startswith(f"{tmp_path}")


def test_report_of_the_last_verification(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert plans.report(str(path)) == "there is no report: verify.yml has not run"
    path.write_text("{")
    assert re.match("the report cannot be read", plans.report(str(path)))
    path.write_text('{"ok": true}')
    assert plans.report(str(path)) == {"ok": True}


def test_tool_is_the_collection_in_a_checkout_and_installed(tmp_path: Path) -> None:
    version = re.findall(r"^version: (\S+)$", (CHECKOUT / "galaxy.yml").read_text(), re.MULTILINE)[0]
    assert plans.tool("x") == {"name": "x", "version": version}
    (tmp_path / "MANIFEST.json").write_text('{"collection_info": {"version": "9.1"}}')
    assert plans.tool("x", tmp_path / "plugins/plugin_utils/x.py") == {"name": "x", "version": "9.1"}
