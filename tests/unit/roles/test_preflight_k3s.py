# SPDX-License-Identifier: Apache-2.0
"""Findings of K3s: roles, versions, servers, tokens."""

from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.preflight_facts import with_facts

module = load("preflight/filter_plugins/preflight_k3s.py")
options = load("k3s/filter_plugins/k3s_options.py")

NO_K3S = {"installed": False, "active": False, "command": None}
IS_SERVER = {"k3s": {"server": {"installed": True}, "agent": NO_K3S}}
IS_AGENT = {"k3s": {"server": NO_K3S, "agent": {"installed": True}}}
IS_BARE = {"k3s": {"server": NO_K3S, "agent": NO_K3S}}


@pytest.mark.parametrize(
    ("others", "fix"),
    [
        ([IS_SERVER, IS_AGENT], "Put b, or another server that runs, first"),
        ([IS_BARE, IS_AGENT], "data were on this server alone"),
    ],
)
def test_a_server_without_k3s_does_not_begin_a_second_cluster(others: list[dict[str, Any]], fix: str) -> None:
    fleet = {"a": IS_BARE, "b": others[0], "c": others[1]}
    (found,) = module.findings_of_server("a", fleet, "a", {})
    assert found["id"] == "server-new"
    assert "c (agent)" in found["found"]
    assert fix in found["fix"]
    # The others are stopped with their server, and have no problem of their own.
    assert module.findings_of_server("c", fleet, "a", {}) == []


def running(role: str, active: bool = True) -> dict[str, Any]:
    return {"k3s": {"server": NO_K3S, "agent": NO_K3S} | {role: {"installed": True, "active": active}}}


@pytest.mark.parametrize(
    ("fleet", "asked"),
    [
        ({"a": running("server"), "b": running("server")}, "a"),
        ({"b": running("server"), "d": running("agent")}, "b"),
        ({"b": running("server", active=False), "c": running("server")}, "c"),
        ({"b": IS_BARE, "d": running("agent")}, "a"),
        ({"d": running("agent")}, "a"),
    ],
    ids=["all answer", "the first is down", "another has stopped", "no other runs", "no server answers"],
)
def test_another_server_is_asked_while_the_first_is_down(fleet: dict[str, Any], asked: str) -> None:
    everyone = ["a", "b", "c", "d"]
    assert module.asked("a", fleet, ["a", "b", "c"], everyone) == asked
    assert module.asked("a", fleet, ["a", "b", "c"], ["d"]) == "a", "with --limit it was not looked at"


def test_a_new_board_waits_for_the_server_that_it_joins() -> None:
    (found,) = module.findings_of_joining(IS_BARE, "a", "b")
    assert found["id"] == "server-down"
    assert "put b first in the inventory" in found["fix"]
    assert module.findings_of_joining(IS_BARE, "a", "a") == []
    assert module.findings_of_joining(running("agent"), "a", "b") == []


@pytest.mark.parametrize(
    "fleet",
    [
        {"a": IS_BARE},
        {"a": IS_BARE, "b": IS_BARE, "c": IS_BARE},
        {"a": IS_SERVER, "b": IS_BARE, "c": IS_AGENT},
        {"a": IS_AGENT, "b": IS_SERVER},
    ],
)
def test_bare_boards_and_a_server_that_is_there_begin_no_second_cluster(fleet: dict[str, Any]) -> None:
    server = "b" if fleet["a"] is IS_AGENT else "a"
    found = [module.findings_of_server(name, fleet, server, {}) for name in fleet]
    assert found == [[] for _ in fleet]


NO, YES = {"item": "b", "installed": False}, {"item": "b", "installed": True}


@pytest.mark.parametrize(
    ("fleet", "results", "begins", "found"),
    [
        ({"a": IS_BARE}, [], False, "server-unanswered"),
        ({"a": IS_BARE}, [{"item": "b", "unreachable": True}], False, "server-unanswered"),
        ({"a": IS_BARE}, [NO], False, "server-unanswered"),
        ({"a": IS_BARE}, [NO, NO | {"item": "c"}], False, ""),
        ({"a": IS_BARE}, [YES], False, "server-new"),
        ({"a": IS_BARE}, [YES], True, "server-new"),
        ({"a": IS_BARE}, [], True, ""),
        ({"a": IS_BARE, "b": IS_BARE, "d": IS_BARE}, [], False, "server-unanswered"),
        ({"a": IS_BARE, "b": IS_BARE, "c": IS_BARE}, [], False, ""),
        ({"a": IS_SERVER}, [], False, ""),
    ],
    ids=[
        "limited", "unreachable", "one of two", "both", "a cluster", "a cluster all the same",
        "the owner says so", "one is off", "all are bare", "there already",
    ],
)  # fmt: skip
def test_bare_first_server_begins_a_cluster_when_each_other_server_has_none(
    fleet: dict[str, Any], results: list[dict[str, Any]], begins: bool, found: str
) -> None:
    answers = module.answers_of(results, ["a", "b", "c"])
    findings = module.findings_of_server("a", fleet, "a", answers, begins)
    assert [entry["id"] for entry in findings] == [found] * bool(found)
    if found == "server-unanswered":
        assert "c did not answer" in findings[0]["found"]
        assert "-e jetson_k3s_confirm=new-cluster" in findings[0]["fix"]


@pytest.mark.parametrize(
    ("command", "ids", "words"),
    [
        ("k3s server --docker --disable traefik", [], ""),
        ("k3s server --node-name gate", ["k3s-foreign-unit"], "--node-name cannot be taken over"),
        ("k3s server -d /mnt/k3s", ["k3s-foreign-unit"], "-d cannot be taken over"),
        ("k3s server -node-name=gate", ["k3s-foreign-unit"], "-node-name cannot be taken over"),
    ],
)
def test_installation_of_the_stock_script_is_taken_over_when_asked(
    command: str, ids: list[str], words: str
) -> None:
    facts = with_facts(k3s__server={"installed": True, "command": f"/usr/local/bin/{command}"})
    found = module.findings_of_role(facts, "server", True, options.not_taken_over(command))
    assert [entry["id"] for entry in found] == ids
    assert all(words in entry["fix"] for entry in found)


@pytest.mark.parametrize(
    ("changes", "role", "ids"),
    [
        ({}, "server", []),
        ({"k3s__server": {"installed": True, "command": "/usr/local/bin/k3s server"}}, "server", []),
        (
            {"k3s__server": {"installed": True, "command": "/usr/local/bin/k3s server --docker"}},
            "server",
            ["k3s-foreign-unit"],
        ),
        (
            {"k3s__server": {"installed": True, "command": "/usr/local/bin/k3s server"}},
            "agent",
            ["k3s-other-role"],
        ),
        ({"k3s__agent": {"installed": True, "command": "/usr/local/bin/k3s agent"}}, "agent", []),
    ],
)
def test_k3s_of_another_role_or_hand_is_found(changes: dict[str, Any], role: str, ids: list[str]) -> None:
    assert [entry["id"] for entry in module.findings_of_role(with_facts(**changes), role, False, [])] == ids


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ({}, 0),
        ({"changed": True}, 0),
        ({"reason": "unreachable", "msg": "x"}, 0),
        ({"reason": "refused", "msg": "x"}, 1),
        ({"reason": "other-ca", "msg": "x"}, 1),
        ({"reason": "untrusted", "msg": "x"}, 1),
        ({"reason": "malformed", "msg": "x"}, 1),
    ],
)
def test_refused_token_is_a_finding_and_a_server_that_is_not_up_yet_is_none(
    answer: dict[str, Any], count: int
) -> None:
    assert len(module.findings_of_token(answer)) == count


@pytest.mark.parametrize(
    ("token", "count"),
    [(None, 0), ("0123456789abcdef", 0), ("short", 1), ("K10" + "0" * 64 + "::server:short", 1)],
)
def test_short_token_is_a_warning_that_does_not_tell_it(token: str | None, count: int) -> None:
    found = module.findings_of_token_strength(token)
    assert len(found) == count
    assert token is None or token not in str(found)


@pytest.mark.parametrize(
    ("installed", "wanted", "found"),
    [
        ("v1.34.1+k3s1", "v1.33.5+k3s1", ["k3s-newer"]),
        ("v1.33.5+k3s1", "v1.33.4+k3s2", ["k3s-newer"]),
        ("v1.33.5+k3s2", "v1.33.5+k3s1", []),
        ("v1.33.5-rc2+k3s1", "v1.33.5+k3s1", []),
        ("v1.33.5+k3s1", "v1.34.1+k3s1", []),
        (None, "v1.33.5+k3s1", []),
        ("v1.33.5+k3s1", None, []),
    ],
)
def test_k3s_does_not_go_back(installed: str | None, wanted: str | None, found: list[str]) -> None:
    facts = with_facts(k3s__version=installed, bundle__k3s_version=wanted)
    assert [entry["id"] for entry in module.findings_of_version(facts)] == found


@pytest.mark.parametrize(
    ("role", "installed", "server", "found"),
    [
        ("server", "v1.33.5+k3s1", "v1.33.5+k3s1", True),
        ("agent", "v1.33.5+k3s1", "v1.33.5+k3s1", True),
        ("agent", "v1.33.5+k3s1", None, True),
        # New to a cluster that is older.
        ("agent", None, "v1.33.5+k3s1", True),
        # It was off when the others were upgraded, or is new; then a server goes by itself.
        ("agent", "v1.32.9+k3s1", "v1.34.0+k3s1", False),
        ("agent", None, "v1.34.0+k3s1", False),
        ("server", "v1.33.5+k3s1", "v1.34.0+k3s1", True),
        ("server", "v1.34.0+k3s1", "v1.34.0+k3s1", False),
        ("server", None, None, False),
    ],
)
def test_another_minor_version_comes_with_an_upgrade(
    role: str, installed: str | None, server: str | None, found: bool
) -> None:
    facts = with_facts(k3s__version=installed, bundle__k3s_version="v1.34.1+k3s1", role=role)
    findings = module.findings_of_upgrade(facts, server)
    assert [entry["id"] for entry in findings] == (["k3s-upgrade"] if found else [])
    assert module.findings_of_upgrade(facts, server, upgrades=True) == []
