# SPDX-License-Identifier: Apache-2.0
"""Playbooks on scripted boards: what changes nothing, who is stopped, and which runs are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.roles.places import Data
from tests.unit.roles.scripted import AGENT, BOARDS, OTHER_AGENT, SERVER, play_scripted
from tests.unit.roles.test_playbooks import PLAYBOOKS

# Modules that only read.
READING = {"file_texts", "jetson_facts", "k3s_nodes", "k3s_observe", "ping", "slurp", "snapshot", "stat"}


@pytest.mark.parametrize("playbook", ["preflight", "status"])
def test_playbook_that_promises_it_changes_no_board(tmp_path: Path, playbook: str) -> None:
    answers = {SERVER: {"file_texts": {"texts": {"token": f"K10{'0' * 64}::server:other"}, "unread": {}}}}
    run, calls = play_scripted(
        tmp_path,
        PLAYBOOKS / f"{playbook}.yml",
        gpu_status_file=str(tmp_path / "output.json"),
        # With a token, which preflight compares with the server's.
        k3s_token=f"K10{'0' * 64}::server:a-long-join-password",
        answers=answers if playbook == "preflight" else {},
    )
    assert {call.board for call in calls} == set(BOARDS), run.stdout
    assert [call for call in calls if call.changes and call.module not in READING] == []


@pytest.mark.parametrize(
    ("board", "stopped"),
    [pytest.param(AGENT, {AGENT}, marks=pytest.mark.acceptance), (SERVER, set(BOARDS))],
)
def test_one_error_stops_its_board_and_an_error_of_the_server_all(
    tmp_path: Path, board: str, stopped: set[str]
) -> None:
    facts = {"cgroup_lacks": {"memory": "not enabled"}}
    answers = {board: {"jetson_facts": {"ansible_facts": {"jetson": facts}}}}
    run, _ = play_scripted(tmp_path, PLAYBOOKS / "preflight.yml", answers=answers, fails=True)
    assert "preflight found 1 problem" in run.said
    for other in stopped - {board}:
        assert f"{other}: stopped, because its server {SERVER} did not pass" in run.said
    failed = {name for name in BOARDS if f"fatal: [{name}]" in run.stdout}
    assert failed == stopped, run.stdout


def test_status_names_a_board_that_is_off_and_asks_one_server(tmp_path: Path) -> None:
    off = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    groups = {"server": [SERVER, AGENT, "jetson-4"], "agent": {OTHER_AGENT: off}}
    groups["k3s_cluster"] = [*groups["server"], OTHER_AGENT]
    run, calls = play_scripted(tmp_path, PLAYBOOKS / "status.yml", groups=groups)
    assert len(calls.of("k3s_observe")) == 1
    assert run.stdout.count("Show GPU allocations") == 1
    assert f"{OTHER_AGENT}" in run.stdout.partition("Show GPU allocations")[2].partition("PLAY RECAP")[0]


@pytest.mark.parametrize(
    ("playbook", "limit", "words"),
    [
        ("rotate_ca", AGENT, "Run it without --limit"),
        pytest.param("rotate_token", AGENT, "Run it without --limit", marks=pytest.mark.acceptance),
        ("forget", None, "Name the boards that are gone: --limit jetson-3."),
    ],
)
def test_run_with_the_wrong_boards_is_refused(
    tmp_path: Path, playbook: str, limit: str | None, words: str
) -> None:
    arguments = [f"--limit={limit}"] if limit else []
    run, calls = play_scripted(tmp_path, PLAYBOOKS / f"{playbook}.yml", *arguments, fails=True)
    assert words in run.said
    assert "Nothing was changed." in run.said
    assert calls == []


@pytest.mark.acceptance
def test_forgotten_node_is_deleted_on_the_locked_server(tmp_path: Path) -> None:
    _, calls = play_scripted(tmp_path, PLAYBOOKS / "forget.yml", f"--limit={AGENT}")
    assert [(call.board, call.module) for call in calls if call.module not in READING] == [
        (SERVER, "run_lock"),
        (SERVER, "k3s_node_schedule"),
        (SERVER, "run_lock"),
    ]
    assert calls.of("k3s_node_schedule", name=AGENT, state="forgotten")
    assert [call.arguments["state"] for call in calls.of("run_lock")] == ["locked", "released"]


def restarts_servers(play: Data) -> bool:
    """Whether the play changes K3s on all servers, and not on the first one, once, or in a backup."""
    text = yaml.safe_dump(play)
    of_one = any(
        words in text
        for words in (
            "run_once: true",
            "inventory_hostname == groups['server'][0]",
            "_role: jetson_k3s.cluster.k3s_backup",
        )
    )
    return (
        play["hosts"] == "server"
        and not of_one
        and ("__rollout_role: " in text or "name: jetson_k3s.cluster.k3s\n" in text)
    )


def test_servers_change_one_after_the_other() -> None:
    found = {
        (path.stem, play["name"]): play.get("serial")
        for path in PLAYBOOKS.glob("*.yml")
        for play in yaml.safe_load(path.read_text())
        # A restore stops all servers: the cluster gets other data.
        if "hosts" in play and path.stem != "restore" and restarts_servers(play)
    }
    assert {playbook for playbook, _ in found} >= {"reboot", "site", "upgrade"}
    assert {name: serial for name, serial in found.items() if serial != 1} == {}
