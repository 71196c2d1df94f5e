# SPDX-License-Identifier: Apache-2.0
"""Findings of who the boards are: hostnames, machine-ids, nodes."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.loading import ROLES, load
from tests.unit.roles.playing import play_text
from tests.unit.roles.preflight_facts import with_facts
from tools.process import run

module = load("preflight/filter_plugins/preflight_identity.py")

CLONED = "0123456789abcdef0123456789abcdef"


def test_duplicate_names_and_machine_ids_are_found_on_each_board() -> None:
    other = with_facts(hostname="other", machine_id="bb")
    fleet = {"a": with_facts(), "b": with_facts(hostname=with_facts()["hostname"].upper()), "c": other}
    assert [entry["id"] for entry in module.findings_of_identity("a", fleet, [], [], [])] == [
        "hostname-duplicate",
        "machine-id-duplicate",
    ]
    assert module.findings_of_identity("c", fleet, ["a", "b", "c"], [], []) == []


def test_fix_for_a_cloned_machine_id_gives_a_new_one(tmp_path: Path) -> None:
    *_, found = module.findings_of_identity("a", {"a": with_facts(), "b": with_facts()}, [], [], [])
    removed, setup, _ = found["fix"].split(" && ")
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):  # as a card that was cloned has them
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"{CLONED}\n")
    for name in removed.removeprefix("sudo rm -f /").split(" /"):
        (tmp_path / name).unlink()
    run([setup.removeprefix("sudo "), f"--root={tmp_path}"])
    made = (tmp_path / "etc/machine-id").read_text().strip()
    assert len(made) == 32
    assert made != CLONED


@pytest.mark.parametrize("hostname", ["jetson_1", "-x", "ä", "--all", "a\n", "a/b", ["a"], None, "a" * 64])
def test_hostname_that_cannot_be_a_node_name_is_found(hostname: object) -> None:
    found = module.findings_of_identity("a", {"a": with_facts(hostname=hostname)}, [], [], [])
    assert [entry["id"] for entry in found] == ["hostname-invalid"]


@pytest.mark.parametrize("hostname", ["jetson-2", "Jetson-2"])
def test_hostname_is_not_the_name_of_another_board_in_the_inventory(hostname: str) -> None:
    fleet = {"jetson-1": with_facts(hostname=hostname)}
    (found,) = module.findings_of_hostname("jetson-1", fleet, ["jetson-1", "jetson-2"])
    assert (found["id"], "calls itself" in found["found"]) == ("hostname-duplicate", True)
    assert module.findings_of_hostname("jetson-1", fleet, ["jetson-1", "jetson-3"]) == []


@pytest.mark.parametrize(
    ("node", "hostname", "named", "found"),
    [
        ("cam-north", "cam-south", False, True),
        ("cam-north", "Cam-North", False, False),
        ("Cam-North", "cam-north", False, False),  # K3s makes it lower-case
        (None, "cam-south", False, False),
        ("camera", "cam-south", True, False),  # it gets its name back
        ("cam-north", "cam-north", True, True),
        (None, "cam-north", True, True),  # a K3s that the stock script has installed
        (None, "Camera", True, False),
    ],
)
def test_board_that_was_renamed_keeps_its_node_or_leaves_first(
    node: str | None, hostname: str, named: bool, found: bool
) -> None:
    at_work = {"installed": True, "command": "k3s agent"}
    facts = with_facts(hostname=hostname, **{"k3s__settings__node-name": node}, k3s__agent=at_work)
    findings = module.findings_of_node("camera", facts, ["camera"] * named)
    assert [entry["id"] for entry in findings] == ["node-renamed"] * found
    keep = "call the board cam-north in the inventory" if named else "set-hostname cam-north"
    for words in (keep, "--limit camera", "delete node cam-north") if found else ():
        assert words in findings[0]["fix"]
    assert module.findings_of_node("camera", with_facts(hostname=hostname), ["camera"] * named) == []


@pytest.mark.parametrize(
    ("host", "ids"),
    [
        ("Cam-North", []),
        ("cam_north", ["hostname-invalid"]),
        ("192.168.1.12", ["hostname-invalid"]),
        ("fd00::2", ["hostname-invalid"]),
        ("a" * 64, ["hostname-invalid"]),
        ("b", ["hostname-duplicate"]),
    ],
)
def test_inventory_name_that_a_board_gets_is_judged_instead_of_its_hostname(
    host: str, ids: list[str]
) -> None:
    fleet = {host: with_facts(machine_id="mine"), "other": with_facts(hostname="b")}
    assert [entry["id"] for entry in module.findings_of_identity(host, fleet, [host], [host], [])] == ids
    assert module.name_of(host, fleet[host], [host]) == host.lower()
    # Flashed alike, and none calls itself as another is called.
    alike = {name: with_facts(machine_id=name) for name in ("x", "y")}
    assert module.findings_of_identity("x", alike, ["x", "y"], ["x", "y"], []) == []


LAN = [{"device": "l4tbr0", "address": "192.168.55.1/24"}, {"device": "eth0", "address": "10.1.0.5/24"}]


@pytest.mark.parametrize(
    ("node", "changes", "ids"),
    [
        (("jetson-1", "bb", ["10.1.0.9"]), {}, ["hostname-duplicate"]),
        (("jetson-9", "aa", ["10.1.0.9"]), {}, ["machine-id-duplicate"]),
        (("jetson-9", "bb", ["10.1.0.9"]), {}, []),
        # The board itself: K3s was removed, or the board was flashed, renamed, or got another address.
        (("jetson-1", "aa", ["10.1.0.5"]), {}, []),
        (("jetson-1", "old", ["10.1.0.5"]), {}, []),
        (("jetson-9", "aa", ["10.1.0.5"]), {}, []),
        (("jetson-1", "aa", ["10.1.0.9"]), {"k3s__agent": {"installed": True, "command": "k3s agent"}}, []),
        (("jetson-1", "bb", ["192.168.55.1"]), {}, ["hostname-duplicate"]),
    ],
    ids=[
        "name", "machine-id", "neither", "removed", "flashed", "renamed", "readdressed",
        "an address of all boards",
    ],
)  # fmt: skip
def test_names_and_machine_ids_of_the_clusters_nodes_are_taken(
    node: tuple[str, str, list[str]], changes: dict[str, Any], ids: list[str]
) -> None:
    nodes = [dict(zip(("name", "machine_id", "addresses"), node, strict=True))]
    facts = with_facts(network__addresses=LAN, **changes)
    found = module.findings_of_identity("jetson-1", {"jetson-1": facts}, ["jetson-1"], [], nodes)
    assert [entry["id"] for entry in found] == ids
    assert all(f"node {node[0]} ({node[2][0]})" in entry["found"] for entry in found)


ASK = """\
- hosts: agent
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: k3s, tasks_from: nodes.yml}
      vars: {__k3s_nodes_servers: [here, gone]}
    - ansible.builtin.debug: {msg: "gone={{ said.gone is none }} here={{ said.here.installed }}"}
      vars: {said: "{{ k3s_nodes_answers.results | preflight_answers(groups.server) }}"}
"""


def test_server_that_does_not_answer_stops_no_board(tmp_path: Path) -> None:
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    groups = {"server": {"here": None, "gone": gone}, "agent": ["board", "other"]}
    filters = str(ROLES / "preflight/filter_plugins")
    run = play_text(tmp_path, ASK, groups=groups, ANSIBLE_FILTER_PLUGINS=filters)
    assert run.said.count("gone=True here=False") == len(groups["agent"])
