# SPDX-License-Identifier: Apache-2.0
"""restore.yml with three servers: a failure in each step, where the data are then, and how they return.

The data are moved by the real modules, between directories of this machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.ansible_core import CORES, NEWEST, OLDEST, OWN
from tests.fleet.local import (
    AGENT,
    FIRST,
    MINE,
    RESTORED,
    SECOND,
    SERVERS,
    THIRD,
    TIMEOUT_SECONDS,
    Ran,
    Servers,
)

pytestmark = pytest.mark.timeout(3 * TIMEOUT_SECONDS)

UNTOUCHED = dict.fromkeys(SERVERS, ("active", MINE))
# Of the others while the first server may have the data of the backup.
ASIDE = {SECOND: ("inactive", "none"), THIRD: ("inactive", "none")}
SUCCESS = {FIRST: ("active", RESTORED), **ASIDE}
NOTHING_STOPPED = "No server was stopped"
WHY = "it broke"
SILENT = "it does not answer any more."
BACK = "its data from before are in place again."
TWO = "two clusters with the same CA"


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path / "run")


class Step(NamedTuple):
    """A fault: {board: {"MODULE CALL": message, or "lost"}}, and what has happened after it."""

    faults: Mapping[str, dict[str, str]]
    states: Mapping[str, tuple[str, str]] = MappingProxyType(UNTOUCHED)
    words: tuple[str, ...] = ()
    variables: Mapping[str, Any] = MappingProxyType({})
    files: tuple[str, ...] = ()
    lost: str = ""
    cores: tuple[str, ...] = (NEWEST,)


BOTH = (NEWEST, OLDEST)
STEPS = {
    "lock": Step(
        {THIRD: {"run_lock 1": "locked by anna"}},
        words=(NOTHING_STOPPED, "s3: Lock the board: locked by anna"),
    ),
    "token of the backup": Step(
        {},
        variables={"k3s_token": "another"},
        words=(NOTHING_STOPPED, "k3s_token is not the token that this cluster had"),
        cores=BOTH,
    ),
    "token of another server": Step(
        {},
        variables={"k3s_token": "{{ 'K10secret' if inventory_hostname != 's2' else 'another' }}"},
        words=(NOTHING_STOPPED, "k3s_token of s2 is another one than that of s1"),
    ),
    "check of the first server": Step({FIRST: {"k3s_restore 1": WHY}}, words=(NOTHING_STOPPED, f": {WHY}")),
    "disk of another server": Step(
        {SECOND: {"k3s_restore 1": WHY}}, words=(NOTHING_STOPPED, f": {WHY}"), cores=BOTH
    ),
    "server lost in its check": Step(
        {THIRD: {"k3s_restore 1": "lost"}},
        words=(
            NOTHING_STOPPED,
            "s3 does not answer any more",
            "s3: it does not answer any more. K3s was not",
        ),
        lost=THIRD,
    ),
    "files of the first server": Step({FIRST: {"command 2": WHY}}, words=(NOTHING_STOPPED,)),
    "files of another server": Step({SECOND: {"command 1": WHY}}, words=(NOTHING_STOPPED,)),
    "server lost at its files": Step({THIRD: {"command 1": "lost"}}, words=(NOTHING_STOPPED,), lost=THIRD),
    "stop of another server": Step(
        {SECOND: {"systemd_service 1": WHY}},
        words=(
            "Not restored: s2: Stop K3s: it broke",
            "s3: its data from before are in place again. K3s runs",
        ),
        cores=BOTH,
    ),
    "server lost while it stops": Step(
        {THIRD: {"systemd_service 1": "lost"}},
        words=(f"s3: {SILENT} K3s may be stopped.", "/s3/k3s/server/db; fi; rm -f"),
        lost=THIRD,
    ),
    "move of another server's data": Step(
        {SECOND: {"k3s_restore 2": WHY}},
        words=("Move its data aside: it broke", f"s2: {BACK}"),
    ),
    "server lost when its data move": Step(
        {THIRD: {"k3s_restore 2": "lost"}},
        UNTOUCHED | {THIRD: ("inactive", MINE)},
        (f"s3: {SILENT} K3s may be stopped. Its data from before are in ",),
        lost=THIRD,
        cores=BOTH,
    ),
    "first server lost before it stops": Step(
        {FIRST: {"ping 1": "lost"}},
        words=(
            "s1: it does not answer any more. K3s was not stopped",
            "s2: its data from before are in place",
        ),
        lost=FIRST,
        cores=BOTH,
    ),
    "stop of the first server": Step(
        {FIRST: {"systemd_service 1": WHY}},
        words=("s1: its data from before are in place again. Stop K3s: it broke",),
    ),
    "exchange of its data": Step(
        {FIRST: {"k3s_restore 2": WHY}},
        words=(
            "Not restored: s1: Unpack the backup",
            *(f"{name}: its data from before are in" for name in SERVERS),
        ),
        cores=BOTH,
    ),
    "snapshot": Step(
        {}, files=("s1/reset-fails",), words=("Restore etcd from the snapshot: no such snapshot",)
    ),
    "start of its K3s": Step(
        {FIRST: {"systemd_service 2": WHY}},
        words=("s1: its data from before are in place again.",),
        cores=BOTH,
    ),
    "node that is not Ready": Step(
        {FIRST: {"ping 2": WHY}},
        SUCCESS,
        (
            "s1 runs with the data of the backup, and the run ended",
            "then run site.yml",
            "To go back instead, on every",
        ),
        cores=BOTH,
    ),
    "first server lost while its data are exchanged": Step(
        {FIRST: {"k3s_restore 2": "lost"}},
        {FIRST: ("inactive", MINE), **ASIDE},
        (
            "s2: K3s is stopped. Its data from before are in ",
            "two clusters with the same CA",
            "/s2/k3s/server/db; fi",
        ),
        lost=FIRST,
        cores=BOTH,
    ),
    "first server lost when its K3s starts": Step(
        {FIRST: {"systemd_service 2": "lost"}},
        {FIRST: ("inactive", RESTORED), **ASIDE},
        (f"s1: {SILENT} it has the data of the backup", TWO),
        lost=FIRST,
    ),
    "way back of another server": Step(
        {FIRST: {"k3s_restore 2": WHY}, SECOND: {"k3s_restore 3": "no way back"}},
        UNTOUCHED | {SECOND: ("inactive", "none")},
        ("s2: K3s is stopped. Its data from before are in ", "no way back", "/s2/k3s/server/db; fi; rm -f"),
    ),
    "K3s that does not start again": Step(
        {FIRST: {"k3s_restore 2": WHY}},
        UNTOUCHED | {SECOND: ("inactive", MINE)},
        (f"s2: {BACK} K3s did not start with them",),
        files=("s2/broken",),
    ),
}
IN_CI = {("disk of another server", OLDEST)}
RUNS = [
    pytest.param(name, line, marks=[] if (name, line) in IN_CI else pytest.mark.acceptance)
    for name, step in STEPS.items()
    for line in step.cores
]


def play(servers: Servers, step: Step, line: str = OWN) -> Ran:
    servers.breaks(**step.faults)
    for file in step.files:
        (servers.fleet / file).touch()
    return servers.play(line=line, variables=dict(step.variables))


@pytest.mark.parametrize(("name", "line"), RUNS)
def test_failure_in_a_step_loses_no_data_and_restarts_no_agent(
    servers: Servers, name: str, line: str
) -> None:
    step = STEPS[name]
    run = play(servers, step, line)
    assert run.code != 0, run.stdout
    assert servers.states() == step.states, run.stdout
    assert [words for words in step.words if words not in run.said] == [], run.stdout
    assert not any(AGENT in done for done in run.log)
    stopped = [done for done in run.log if "stop" in done]
    assert (stopped == []) is (NOTHING_STOPPED in run.said)
    # The next run releases a board that was lost, and knows which data are from before.
    expected = {step.lost} | {name for name, (_, data) in step.states.items() if data == "none"}
    assert {path.partition("/")[0] for path in servers.left()} <= (
        expected if step.states != SUCCESS else set()
    )


def test_etcd_is_reset_with_the_tokens_of_the_backup(servers: Servers) -> None:
    # K3s would write the token of servers for agents as well, and not start afterwards.
    run = servers.play()
    assert run.code == 0, run.stdout
    assert run.log.index("s1 configured") < run.log.index("s1 cluster-reset")


@pytest.mark.acceptance
def test_all_servers_get_the_data_of_the_backup(servers: Servers) -> None:
    run = servers.play()
    assert run.code == 0, run.stdout
    assert servers.states() == SUCCESS
    assert servers.left() == []
    first = ["s1 docker", "s1 prepare"]
    assert run.log[:2] == first
    assert sorted(run.log[2:6]) == ["s2 binary", "s2 stop k3s", "s3 binary", "s3 stop k3s"]
    restored = ["s1 stop k3s", "s1 configured", "s1 cluster-reset", "s1 start k3s"]
    assert run.log[6:] == [*restored, "a1 restart k3s-agent"]
    for name, place in ((FIRST, "server"), (SECOND, "server/db"), (THIRD, "server/db")):
        (kept,) = (servers.fleet / name / "k3s").glob(f"{place}.before-*")
        assert f"{name}: " in run.said and f"Its data from before are in {kept}." in run.said
        assert (kept / ("db/state" if name == FIRST else "state")).read_text() == MINE


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "name",
    ["exchange of its data", "first server lost while its data are exchanged", "way back of another server"],
)
def test_same_command_goes_on_after_a_failure_and_knows_the_data_from_before(
    servers: Servers, name: str
) -> None:
    play(servers, STEPS[name])
    servers.heal()
    failed_again = play(servers, Step({FIRST: {"k3s_restore 2": WHY}}))
    assert failed_again.code != 0
    data = {server: data for server, (_, data) in servers.states().items()}
    assert data == dict.fromkeys(SERVERS, MINE), failed_again.stdout
    servers.heal()
    run = servers.play()
    assert (run.code, servers.states()) == (0, SUCCESS), run.stdout
    assert servers.left() == []


@pytest.mark.acceptance
def test_check_mode_changes_nothing(servers: Servers) -> None:
    run = servers.play("--check")
    assert run.code == 0, run.stdout
    assert (servers.states(), servers.left()) == (UNTOUCHED, [])
    assert run.log == []


def test_server_that_is_left_out_is_named(servers: Servers) -> None:
    run = servers.play("--limit=s1,s2,a1")
    assert (run.code != 0, servers.states(), run.log) == (True, UNTOUCHED, [])
    assert "s3: outside of this run (--limit). A restore needs every server of the inventory" in run.said


@pytest.mark.parametrize("line", CORES)
def test_server_that_answers_late_is_named(servers: Servers, line: str) -> None:
    """It answered preflight, and does not when its cluster is compared."""
    servers.breaks(s3={"stat 1": "lost"})
    run = servers.play(line=line)
    assert (run.code != 0, servers.states(), run.log) == (True, UNTOUCHED, [])
    assert "s3 does not answer any more" in run.said, run.stdout


@pytest.mark.parametrize("name", [pytest.param(SECOND, marks=pytest.mark.acceptance), AGENT])
def test_backup_of_another_cluster_is_refused(servers: Servers, name: str) -> None:
    place = "agent/server-ca.crt" if name == AGENT else "server/tls/server-ca.crt"
    (servers.fleet / name / "k3s" / place).write_text("another ca")
    run = servers.play()
    assert (run.code != 0, servers.states(), run.log) == (True, UNTOUCHED, [])
    assert f"{name} is in a cluster with another CA than that of the backup" in run.said
    named = f"-e jetson_k3s_confirm=without-server{'' if name == AGENT else ' -e k3s_reset_cluster=s2'}."
    assert named in run.said


def test_backup_of_a_newer_k3s_is_refused(servers: Servers) -> None:
    backup = servers.pack(k3s_version="v1.34.1+k3s1")
    variables = {"k3s_backup_accepted_sha256": hashlib.sha256(backup.read_bytes()).hexdigest()}
    run = servers.play(variables=variables)
    assert (run.code != 0, servers.states(), run.log) == (True, UNTOUCHED, [])
    assert "The backup is of K3s v1.34.1+k3s1, and v1.33.5+k3s1 would read it." in run.said


@pytest.mark.acceptance
def test_clock_that_stands_at_an_earlier_restore_is_found(servers: Servers) -> None:
    (servers.fleet / THIRD / "k3s/server/db.before-20260102T030405Z").mkdir()
    run = servers.play(variables={"__k3s_backup_stamp": "20260102T030405Z"})
    assert (run.code != 0, servers.states()) == (True, UNTOUCHED)
    assert "db.before-20260102T030405Z exists already, so the clock of the computer" in run.said
    assert NOTHING_STOPPED in run.said
