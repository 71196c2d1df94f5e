# SPDX-License-Identifier: Apache-2.0
"""Module k3s_node_schedule: the commands that put a node out of service, back, or out of its cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_kubectl import CORDONED, KubectlError
from ansible_collections.jetson_k3s.cluster.plugins.modules import k3s_node_schedule as schedule

from tests.unit.roles import playing
from tests.unit.roles.places import Data

RESOURCE = "nvidia.com/gpu"
SECRET = ".node-password.k3s"
PASSWORD = ("secret", f"a{SECRET}")
OURS = {CORDONED: '{"nvidia.com/gpu": 4}'}
Run = Callable[..., tuple[Data, list[str]]]


def node(name: str = "a", *, cordoned: bool = False, annotations: Data | None = None) -> Data:
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {"allocatable": {RESOURCE: "1"}, "capacity": {RESOURCE: "2"}, "conditions": []},
    }


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the module for node a; return its result and the commands of kubectl that change something."""
    waits: list[Any] = []

    def start(
        state: str,
        *nodes: Data,
        password: bool = False,
        record: str = "",
        check_mode: bool = False,
        fails: Exception | None = None,
        **params: Any,
    ) -> Any:
        objects: dict[tuple[str, str], Data] = {("node", one["metadata"]["name"]): one for one in nodes}
        if password or record:
            annotations = {"jetson-k3s.github.io/board": record} if record else {}
            objects[PASSWORD] = {"kind": "Secret", "metadata": {"annotations": annotations}}
        calls: list[str] = []
        monkeypatch.setattr(schedule, "get", lambda *argv: objects.get(argv[-2:]))
        monkeypatch.setattr(schedule, "password", lambda name: objects.get(("secret", f"{name}{SECRET}")))
        monkeypatch.setattr(schedule, "listed", lambda kind, *_: list(nodes) if kind == "nodes" else [])
        monkeypatch.setattr(schedule, "devices", lambda _name: {})

        def kubectl(*argv: str) -> None:
            calls.append(" ".join(argv))
            if fails:
                raise fails

        monkeypatch.setattr(schedule, "run", kubectl)
        monkeypatch.setattr("time.sleep", waits.append)
        monkeypatch.setattr(schedule, "wait_offered", lambda *given: waits.append(given))
        given: Data = {"name": "a", "state": state, "drain_arguments": ["--force"], "timeout": 7}
        given |= {"offers": {}, "boot_id": None, "quorum": False, "servers": {}}
        given |= {"board": "a", "boards": {"a": []}}
        result = playing.outcome(monkeypatch, schedule, given | params, check_mode)
        result["waits"] = waits
        return result, calls

    return start


# What a hostile board c calls itself, that the node a is of, and where c is in the inventory.
@pytest.mark.parametrize("state", ["known", "drained", "schedulable", "forgotten"])
@pytest.mark.parametrize(
    ("record", "boards", "gone"),
    [
        ("", {"c": ["192.0.2.3"]}, False),  # no board of this inventory
        ("", {"a": [], "c": []}, False),  # a board that is not in this run, or off
        ("b", {"b": [], "c": []}, False),  # the same, with another hostname
        ("b", {"c": []}, False),  # of another inventory
        ("", {"c": []}, True),  # only the password is there, which keeps the name
    ],
)
def test_node_of_another_board_is_not_touched(
    run: Run, state: str, record: str, boards: Data, gone: bool
) -> None:
    result, calls = run(
        state, *([] if gone else [node()]), password=True, record=record, board="c", boards=boards
    )
    assert calls == []
    assert result["failed"] is True
    assert "what c calls itself does not count" in result["msg"]


def test_state_of_a_node_is_read_and_nothing_is_changed(run: Run) -> None:
    result, calls = run("known", node(cordoned=True, annotations=OURS))
    assert calls == []
    assert (result["changed"], result["known"], result["cordoned"]) == (False, True, True)
    assert (result["offers"], result["capacity"]) == ({RESOURCE: 4}, {RESOURCE: 2})


@pytest.mark.parametrize("state", ["known", "drained", "schedulable"])
def test_node_that_the_cluster_does_not_know_is_no_error(run: Run, state: str) -> None:
    result, calls = run(state, node("b"))
    assert calls == []
    assert (result["changed"], result["known"], result["offers"]) == (False, False, {})


@pytest.mark.parametrize("check_mode", [False, True])
def test_drained_node_is_marked_first(run: Run, check_mode: bool) -> None:
    result, calls = run("drained", node(), check_mode=check_mode)
    mark = f'annotate --overwrite node a {CORDONED}={{"nvidia.com/gpu": 1}}'
    assert calls == ([] if check_mode else [mark, "drain --timeout=7s --force a"])
    assert result["changed"] is True


@pytest.mark.parametrize(
    ("there", "check_mode", "commands"),
    [
        (
            node(cordoned=True, annotations=OURS),
            False,
            ["uncordon a", f"annotate node a {CORDONED}-"],
        ),
        (node(cordoned=True, annotations=OURS), True, []),
        (node(cordoned=True), False, []),  # its owner has cordoned it
        (node(), False, []),
    ],
)
def test_only_what_a_drain_has_cordoned_takes_pods_again(
    run: Run, there: Data, check_mode: bool, commands: list[str]
) -> None:
    result, calls = run("schedulable", there, check_mode=check_mode)
    assert calls == commands
    assert result["changed"] is bool(commands or check_mode)


def deletion(kind: str, name: str) -> str:
    return f"--namespace=kube-system delete --ignore-not-found --timeout=7s {kind} {name}"


@pytest.mark.parametrize(
    ("there", "password", "deleted"),
    [
        (True, True, [("node", "a"), PASSWORD]),
        (True, False, [("node", "a")]),
        (False, True, [PASSWORD]),  # a run that was cut off
    ],
)
def test_forgotten_node_leaves_no_password(
    run: Run, there: bool, password: bool, deleted: list[tuple[str, str]]
) -> None:
    nodes = [node("b"), *([node()] if there else [])]
    for check_mode in (True, False):
        result, calls = run("forgotten", *nodes, password=password, check_mode=check_mode)
        assert calls == ([] if check_mode else [deletion(*one) for one in deleted])
        assert (result["changed"], result["known"], result["nodes"]) == (True, True, [])


@pytest.mark.parametrize("member", [False, True])
def test_member_of_etcd_that_stays_is_named(run: Run, member: bool) -> None:
    there = node()
    if member:
        there["metadata"]["labels"] = {"node-role.kubernetes.io/etcd": "true"}
    problem = KubectlError("timed out waiting for the condition on nodes/a")
    result, _ = run("forgotten", there, fails=problem)
    assert "timed out" in result["msg"]
    assert ("sudo journalctl -u k3s | grep -i etcd" in result["msg"]) is member
    result, _ = run("forgotten", there, fails=KubectlError("Forbidden"))
    assert "journalctl" not in result["msg"], "nothing is being deleted"


def test_unknown_node_to_forget_is_answered_with_the_others(run: Run) -> None:
    result, calls = run("forgotten", node("c"), node("b"))
    assert calls == []
    assert (result["changed"], result["known"], result["nodes"]) == (False, False, ["b", "c"])


def test_node_is_waited_for_after_its_kubelet_has_reported(run: Run) -> None:
    wanted = {"offers": {RESOURCE: "1"}, "boot_id": "b"}
    result, _ = run("known", node(), check_mode=True, **wanted)
    assert result["waits"] == []
    result, _ = run("known", node(), **wanted)
    settle, waited = result["waits"]
    assert settle > 10  # seconds between two reports of a kubelet
    assert waited == ("a", {RESOURCE: 1}, 7, "b")
