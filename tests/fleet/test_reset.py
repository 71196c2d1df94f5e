# SPDX-License-Identifier: Apache-2.0
"""reset.yml and forget.yml with several servers: order, majority, confirmation, and failures on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_nodes
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import k3s_reset as reset

from tests.ansible_core import CORES, OLDEST
from tests.fleet.local import TIMEOUT_SECONDS
from tests.fleet.scripted import Fleet, done, fault, node, said
from tests.hostile.site import Run

pytestmark = pytest.mark.timeout(2 * TIMEOUT_SECONDS)

CHANGING = ("k3s_node_schedule", "systemd_service", "k3s_reset")


def changes(run: Run) -> list[tuple[str, ...]]:
    return done(run, *CHANGING)


def leaves(server: str, asked: str) -> list[tuple[str, ...]]:
    """The steps of a server that leaves while others stay."""
    return [
        (asked, "k3s_node_schedule", "drained", server),
        (asked, "k3s_node_schedule", "known", server),
        (server, "systemd_service", "stopped", "k3s"),
        (asked, "k3s_node_schedule", "forgotten", server),
        (server, "k3s_reset"),
    ]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "controller")


@pytest.mark.acceptance
def test_agent_is_drained_removed_and_forgotten(fleet: Fleet) -> None:
    run = fleet.play("reset", "--limit=jetson-4")
    assert run.code == 0, run.said
    assert changes(run) == [
        ("jetson-1", "k3s_node_schedule", "drained", "jetson-4"),
        ("jetson-4", "k3s_reset"),
        ("jetson-1", "k3s_node_schedule", "forgotten", "jetson-4"),
    ]


@pytest.mark.parametrize("line", CORES)
@pytest.mark.parametrize(
    ("server", "asked"),
    [pytest.param("jetson-3", "jetson-1", marks=pytest.mark.acceptance), ("jetson-1", "jetson-2")],
)
def test_server_leaves_etcd_before_its_data_go(fleet: Fleet, line: str, server: str, asked: str) -> None:
    run = fleet.play("reset", f"--limit={server}", line=line)
    assert run.code == 0, run.said
    assert changes(run) == leaves(server, asked)
    calls = [arguments for _, module, arguments in run.calls if module == "k3s_node_schedule"]
    quorums = {arguments["state"]: arguments.get("quorum") for arguments in calls}
    assert quorums == {"drained": True, "known": True, "forgotten": None}
    first = "Put jetson-2 first in the group [server], and run site.yml."
    assert (first in said(run)) is (server == "jetson-1")


def test_no_server_is_touched_after_an_agent_that_fails(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "controller", servers=1)
    ends = ("-e", "k3s_reset_cluster=jetson-1")
    run = fleet.play("reset", *ends, faults=[fault("jetson-2", "k3s_reset")])
    assert run.code != 0
    assert sorted(changes(run)) == [("jetson-2", "k3s_reset"), ("jetson-3", "k3s_reset")]
    for line in ("removed: jetson-3", "not touched: jetson-1", "failed: jetson-2: "):
        assert line in said(run)


@pytest.mark.acceptance
def test_servers_leave_one_after_the_other_while_a_majority_stays(tmp_path: Path) -> None:
    run = Fleet(tmp_path / "controller", servers=5).play("reset", "--limit=jetson-2,jetson-4")
    assert run.code == 0, run.said
    assert changes(run) == [*leaves("jetson-4", "jetson-1"), *leaves("jetson-2", "jetson-1")]


@pytest.mark.parametrize("line", CORES)
def test_two_of_three_servers_are_refused_before_anything(fleet: Fleet, line: str) -> None:
    run = fleet.play("reset", "--limit=jetson-2,jetson-3,jetson-4", line=line)
    assert run.code != 0
    assert changes(run) == []
    assert (
        "jetson-3, jetson-2 cannot leave the cluster: while jetson-2 leaves, etcd has 2 members and needs 2 "
        "that work, and these would be left: jetson-1. Repair the others first, or let fewer servers leave."
    ) in said(run)


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("limit", "options", "last"),
    [
        (None, (), "jetson-3,jetson-2,jetson-1"),
        ("server", (), "jetson-3,jetson-2,jetson-1"),
        ("server", ("-e", "k3s_reset_cluster=jetson-1,jetson-2"), "jetson-3,jetson-2,jetson-1"),
        ("jetson-3", ("-e", "jetson_k3s_confirm=without-server"), "jetson-3"),
    ],
)
def test_end_of_a_cluster_is_confirmed_by_the_names_of_its_servers(
    fleet: Fleet, limit: str | None, options: tuple[str, ...], last: str
) -> None:
    arguments = [*options, *([f"--limit={limit}"] if limit else [])]
    run = fleet.play("reset", *arguments)
    assert run.code != 0
    assert changes(run) == []
    site, playbook = f"{fleet.site.root}/site/inventory", "playbooks/reset.yml"
    words = said(run)
    assert f"This run ends the data of {last.replace(',', ', ')}: no server that stays has them." in words
    command = words[words.index("If that is what you want: ") :]
    assert f"ansible-playbook -i {site} " in command
    assert f"{playbook} {f'--limit {limit} ' if limit else ''}" in command
    confirmed = "-e jetson_k3s_confirm=without-server " * ("without-server" in str(options))
    assert f"{confirmed}-e k3s_reset_cluster={last}" in command
    done_so = fleet.play("reset", *arguments, "-e", f"k3s_reset_cluster={last}")
    assert done_so.code == 0, done_so.said
    boards = last.split(",") if limit else [*last.split(","), *fleet.agents]
    assert set(changes(done_so)) == {(board, "k3s_reset") for board in boards}


@pytest.mark.acceptance
def test_check_mode_needs_no_confirmation(fleet: Fleet) -> None:
    run = fleet.play("reset", "--check")
    assert run.code == 0, run.said
    assert {call[0] for call in changes(run)} == {*fleet.servers, *fleet.agents}


@pytest.mark.acceptance
def test_only_server_is_confirmed_too(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "controller", servers=1, agents=1)
    run = fleet.play("reset", "--limit=jetson-1")
    assert (run.code != 0, changes(run)) == (True, [])
    assert "-e k3s_reset_cluster=jetson-1" in said(run)
    assert fleet.play("reset", "--limit=jetson-1", "-e", "k3s_reset_cluster=jetson-1").code == 0


SILENT: dict[str, Any] = {"nodes": []}


@pytest.mark.acceptance
def test_another_server_is_asked_if_one_does_not_answer_or_is_off(fleet: Fleet) -> None:
    late = fault("jetson-1", "k3s_nodes", SILENT)
    off = fault("jetson-2", "k3s_nodes", {"unreachable": True})
    run = fleet.play("reset", "--limit=jetson-4", faults=[late, off])
    assert {call[0] for call in changes(run)} == {"jetson-3", "jetson-4"}, run.said


@pytest.mark.parametrize("limit", [pytest.param("jetson-4", marks=pytest.mark.acceptance), "jetson-2"])
def test_no_board_leaves_a_cluster_that_does_not_answer(fleet: Fleet, limit: str) -> None:
    run = fleet.play("reset", f"--limit={limit}", faults=[fault(fleet.servers, "k3s_nodes", SILENT)])
    assert (run.code != 0, changes(run)) == (True, [])
    assert "answers and runs the cluster, so no board can leave it. Start one" in said(run)
    assert ("without-server -e k3s_reset_cluster=jetson-2" in said(run)) is (limit == "jetson-2")


@pytest.mark.parametrize("line", CORES)
@pytest.mark.parametrize(
    ("module", "arguments", "steps"),
    [
        pytest.param("k3s_node_schedule", {"state": "drained"}, 1, marks=pytest.mark.acceptance),
        pytest.param("k3s_node_schedule", {"state": "known"}, 2, marks=pytest.mark.acceptance),
        ("systemd_service", {"state": "stopped"}, 3),
        pytest.param("k3s_node_schedule", {"state": "forgotten"}, 4, marks=pytest.mark.acceptance),
    ],
)
def test_server_that_cannot_leave_keeps_its_data(
    fleet: Fleet, line: str, module: str, arguments: dict[str, Any], steps: int
) -> None:
    boards = [*fleet.servers]
    run = fleet.play("reset", "--limit=jetson-3", faults=[fault(boards, module, **arguments)], line=line)
    assert run.code != 0
    assert changes(run) == leaves("jetson-3", "jetson-1")[:steps]
    place = "leave its cluster" if steps == 1 else "leave etcd"
    assert f"jetson-3: cannot {place}: injected into {module}" in said(run)


@pytest.mark.acceptance
def test_second_server_stays_when_the_first_one_cannot_leave(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "controller", servers=5)
    fails = fault(fleet.servers, "k3s_node_schedule", state="forgotten", name="jetson-4")
    run = fleet.play("reset", "--limit=jetson-2,jetson-4", faults=[fails], line=OLDEST)
    assert run.code != 0
    assert changes(run) == leaves("jetson-4", "jetson-1")[:4]


@pytest.mark.acceptance
@pytest.mark.parametrize("line", CORES)
def test_dead_server_is_forgotten_by_one_that_answers(fleet: Fleet, line: str) -> None:
    fleet.nodes[0]["ready"] = False
    silent = fault("jetson-1", "k3s_nodes", {"unreachable": True})
    run = fleet.play("forget", "--limit=jetson-1", faults=[silent], line=line)
    assert run.code == 0, run.said
    assert changes(run) == [("jetson-2", "k3s_node_schedule", "forgotten", "jetson-1")]


def test_node_is_forgotten_by_the_clusters_record_of_its_board(fleet: Fleet) -> None:
    """Another board once had the name that this one has in the inventory."""
    fleet.nodes[3]["name"], fleet.nodes[4]["name"] = "orin", "jetson-4"
    run = fleet.play("forget", "--limit=jetson-4")
    assert run.code == 0, run.said
    assert changes(run) == [("jetson-1", "k3s_node_schedule", "forgotten", "orin")]


@pytest.mark.acceptance
def test_running_server_is_not_forgotten_under_another_name(fleet: Fleet) -> None:
    fleet.nodes[2]["name"] = "orin"
    gone = fault("jetson-3", "k3s_nodes", {"unreachable": True})
    run = fleet.play("forget", "--limit=jetson-3", faults=[gone])
    assert (run.code != 0, changes(run)) == (True, [])
    assert "jetson-3: K3s is there and is a member of etcd" in said(run)


@pytest.mark.parametrize("ready", [True, False])
def test_running_server_is_not_forgotten(fleet: Fleet, ready: bool) -> None:
    """Its node may be not Ready for a moment, such as under load."""
    fleet.nodes[2]["ready"] = ready
    run = fleet.play("forget", "--limit=jetson-3")
    assert (run.code != 0, changes(run)) == (True, [])
    assert "jetson-3: K3s is there and is a member of etcd" in said(run)
    assert "playbooks/reset.yml --limit jetson-3" in said(run)


@pytest.mark.acceptance
def test_no_server_is_forgotten_if_none_is_left_or_answers(fleet: Fleet) -> None:
    run = fleet.play("forget", "--limit=server")
    assert (run.code != 0, changes(run)) == (True, [])
    assert "no server would be left" in said(run)
    run = fleet.play("forget", "--limit=jetson-4", faults=[fault(fleet.servers, "k3s_nodes", SILENT)])
    assert (run.code != 0, changes(run)) == (True, [])
    assert "No server that stays (jetson-1, jetson-2, jetson-3) answers and runs the cluster." in said(run)


A, B, C, D, E = "abcde"


@pytest.mark.parametrize(
    ("working", "down", "leaving", "lost"),
    [
        ([A], [], [A], ""),
        (
            [A, B],
            [],
            [B],
            "while b leaves, etcd has 2 members and needs 2 that work",
        ),
        ([A, B, C], [], [C], ""),
        ([A, B, C], [], [C, B], "while b leaves, etcd has 2 members"),
        ([A, B], [C], [C], ""),
        ([A, B], [C], [B], "while b leaves, etcd has 3 members and needs 2 that work"),
        ([A, B, C, D, E], [], [E, D], ""),
        ([A, B, C, D, E], [], [E, D, C], ""),
        ([A, B, C, D, E], [], [E, D, C, B], "while b leaves, etcd has 2 members"),
        ([A, B, C, D], [E], [D], ""),
        ([A, B, C], [D, E], [C], "while c leaves, etcd has 5 members and needs 3 that work"),
        ([A, B, C], [D, E], [E, D], ""),
        ([A, B, C], [D, E], [E, D, C], ""),
        ([], [A, B, C], [A], "these would be left: none"),
        ([A, B, C], [], ["of no member"], ""),
    ],
)
def test_majority_of_etcd(working: list[str], down: list[str], leaving: list[str], lost: str) -> None:
    """A member that learns yet counts as one that does not work; a node without etcd as no member."""
    nodes = [node(name, True) for name in working] + [node("agent")]
    nodes += [node(name, voter=number % 2 == 0, ready=number % 2 == 1) for number, name in enumerate(down)]
    found = reset.majority_lost(nodes, leaving)
    assert (lost in found) if lost else found == ""


def server(name: str, installed: bool = True, active: bool = True) -> dict[str, Any]:
    return {"hostname": name.upper(), "k3s": {"server": {"installed": installed, "active": active}}}


@pytest.mark.parametrize(
    ("fleet", "known", "leaving", "last"),
    [
        ({A: server(A)}, [A, B], True, []),
        ({A: server(A)}, [B], True, [A]),  # a cluster of its own
        ({A: server(A, active=False)}, [B], True, []),  # its node went in a run that was interrupted
        ({A: server(A), B: server(B)}, [], False, [A, B]),
        ({A: server(A), B: server(B, installed=False)}, [], False, [A]),
        ({A: server(A, installed=False, active=False)}, [], False, []),  # it was reset before
        ({}, [], False, []),
    ],
)
def test_servers_whose_data_end_are_known(
    fleet: dict[str, Any], known: list[str], leaving: bool, last: list[str]
) -> None:
    nodes = [node(name, True) for name in known]
    assert reset.ends(fleet, nodes, leaving) == last
    cluster = {"kubectl": known[0] if known else "", "nodes": nodes, "staying": known}
    for confirmed, fine in (("", not last), (" ,".join(last), True), (["x", *last], True)):
        said = reset.refusal(fleet, cluster, leaving, confirmed, "COMMAND")
        assert ("COMMAND -e k3s_reset_cluster=" in said) is not fine


def test_nodes_are_known_with_their_part_in_etcd() -> None:
    for labels, voter, part in (
        ({}, {}, None),
        ({"node-role.kubernetes.io/etcd": "true"}, {}, True),  # a release before 1.25.16
        ({"node-role.kubernetes.io/etcd": "true"}, {"EtcdIsVoter": "True"}, True),
        ({"node-role.kubernetes.io/etcd": "true"}, {"EtcdIsVoter": "False"}, False),
    ):
        conditions = [{"type": kind, "status": is_so} for kind, is_so in {"Ready": "False", **voter}.items()]
        metadata = {"name": A, "labels": labels}
        found = k3s_nodes.node_facts({"metadata": metadata, "status": {"conditions": conditions}}, "", {})
        assert (found["ready"], found["voter"]) == (False, part)
