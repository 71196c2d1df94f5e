# SPDX-License-Identifier: Apache-2.0
"""A drained node tells what it offers, and takes pods again when it offers that once more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.playing import outcome

schedule = load("k3s/library/k3s_node_schedule.py")


def node(ready: bool = True, **allocatable: str) -> dict[str, Any]:
    """A node; `gpu` stands for nvidia.com/gpu."""
    names = {"gpu": "nvidia.com/gpu", "memory": "memory", "cpu": "cpu"}
    return {
        "status": {
            "allocatable": {names[key]: value for key, value in allocatable.items()},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
    }


def test_kubernetes_own_resources_are_not_waited_for() -> None:
    assert schedule.extended(node(gpu="4", memory="7Gi", cpu="6")) == {"nvidia.com/gpu": 4}
    # What a node has not offered before its restart it need not offer afterwards.
    assert schedule.extended(node(gpu="0")) == {}
    assert schedule.extended({"status": {}}) == {}


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (node(gpu="4"), ""),
        (node(gpu="5"), ""),
        (node(gpu="3"), "3 nvidia.com/gpu instead of 4"),
        (node(), "0 nvidia.com/gpu instead of 4"),
        (node(ready=False, gpu="4"), "it is not Ready"),
    ],
)
def test_what_a_node_lacks_is_said(there: dict[str, Any], words: str) -> None:
    assert schedule.lacking(there, {"nvidia.com/gpu": 4}) == words


def test_node_that_does_not_come_back_is_told_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(satisfied: Any, what: str, timeout: int, *_argv: str) -> None:
        assert not satisfied(node(gpu="0"))
        raise schedule.WatchTimeoutError(what, node(gpu="0"))

    monkeypatch.setattr(schedule, "wait_until", never)
    monkeypatch.setattr(schedule, "SETTLE_SECONDS", 0)
    with pytest.raises(schedule.KubectlError, match=r"after 120 s 0 nvidia\.com/gpu instead of 1"):
        schedule.wait_offered("jetson-1", {"nvidia.com/gpu": 1}, 120)


def a_slice(*devices: dict[str, Any]) -> dict[str, Any]:
    """A ResourceSlice of the DRA driver."""
    return {"kind": "ResourceSlice", "spec": {"driver": "gpu.example.org", "devices": list(devices)}}


TAINTED = {"name": "igpu-1", "taints": [{"key": "unhealthy", "effect": "NoSchedule"}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """A server that knows claims: what each look at the slices finds, of which the last stays."""
    looks: list[list[dict[str, Any]]] = [[]]
    monkeypatch.setattr(schedule, "knows", lambda api: api == "resource.k8s.io/v1")
    monkeypatch.setattr(schedule, "listed", lambda *_: looks.pop(0) if looks[1:] else looks[0])
    monkeypatch.setattr(schedule, "wait_until", lambda *_: None)
    monkeypatch.setattr(schedule.time, "sleep", lambda _: None)
    return looks


def test_devices_that_a_claim_can_have_are_counted(server: list[list[dict[str, Any]]]) -> None:
    server[:] = [[a_slice({"name": "igpu-0"}, TAINTED), a_slice({"name": "igpu-2"})]]
    assert schedule.devices("jetson-1") == {"gpu.example.org": 2}
    server[:] = [[a_slice({"name": "igpu-0", "taints": [{"key": "hot", "effect": "None"}]})]]
    assert schedule.devices("jetson-1") == {"gpu.example.org": 1}
    server[:] = [[a_slice(TAINTED), a_slice()]]
    assert schedule.devices("jetson-1") == {}


def test_server_without_claims_is_not_asked_for_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "knows", lambda _: False)
    assert schedule.devices("jetson-1") == {}


def test_devices_of_claims_are_waited_for(server: list[list[dict[str, Any]]]) -> None:
    well = [a_slice({"name": "igpu-0"})]
    server[:] = [[], [a_slice(TAINTED)], well]
    schedule.wait_offered("jetson-1", {"gpu.example.org": 1}, 120)
    assert server == [well]


def test_devices_that_do_not_come_back_are_told(server: list[list[dict[str, Any]]]) -> None:
    server[:] = [[a_slice(TAINTED)]]
    with pytest.raises(schedule.KubectlError, match=r"after 0 s 0 gpu\.example\.org instead of 1"):
        schedule.wait_offered("jetson-1", {"gpu.example.org": 1}, 0)


def member(name: str, ready: bool = True, voter: bool | None = True) -> dict[str, Any]:
    """A node; `voter` is None where it has no etcd."""
    conditions = {"Ready": ready} | ({} if voter is None else {"EtcdIsVoter": voter})
    told = [{"type": kind, "status": str(value)} for kind, value in conditions.items()]
    return {"metadata": {"name": name}, "status": {"conditions": told}}


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ([], ""),  # the only server is no majority of anything
        ([member("b", voter=None)], ""),
        ([member("b"), member("c")], ""),
        ([member("b"), member("c", ready=False)], "etcd has 3 members and needs 2, and only a, b work."),
        ([member("b"), member("c", voter=False)], "etcd has 3 members and needs 2, and only a, b work."),
        ([member("b"), member("c"), member("d"), member("e", ready=False)], ""),
    ],
)
def test_server_without_which_etcd_has_no_majority_has_to_stay(
    others: list[dict[str, Any]], problem: str
) -> None:
    nodes = [member("a"), *others]
    if problem:
        with pytest.raises(schedule.KubectlError, match=problem):
            schedule.check_quorum("a", nodes)
    else:
        schedule.check_quorum("a", nodes)


def test_kubelet_has_to_report_the_boot_of_its_board() -> None:
    there = node(gpu="1")
    there["status"]["nodeInfo"] = {"bootID": "before"}
    assert schedule.lacking(there, {}, "after") == "its kubelet has not reported since the board started"
    assert schedule.lacking(there, {"nvidia.com/gpu": 1}, "before") == ""


@pytest.mark.parametrize(
    ("annotation", "offers"),
    [
        (None, {"nvidia.com/gpu": 1}),
        ("true", {"nvidia.com/gpu": 1}),  # by a release before
        ('{"nvidia.com/gpu": 4, "gpu.example.org": 1}', {"nvidia.com/gpu": 4, "gpu.example.org": 1}),
    ],
)
def test_run_that_goes_on_knows_what_the_node_offered_when_it_was_cordoned(
    monkeypatch: pytest.MonkeyPatch, annotation: str | None, offers: dict[str, int]
) -> None:
    """The kubelet offers less until the device plugin has registered again."""
    annotations = {} if annotation is None else {schedule.CORDONED: annotation}
    seen = node(gpu="1") | {"metadata": {"name": "a", "annotations": annotations}, "spec": {}}
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(schedule, "get", lambda *_: seen)
    monkeypatch.setattr(schedule, "listed", lambda *_: [])
    monkeypatch.setattr(schedule, "knows", lambda _: False)
    monkeypatch.setattr(schedule, "run", lambda *argv: calls.append(argv))
    given: dict[str, Any] = {
        "name": "a",
        "state": "drained",
        "drain_arguments": [],
        "offers": {},
        "boot_id": None,
    }
    found = outcome(monkeypatch, schedule, given | {"quorum": False, "timeout": 1})
    assert (found["offers"], found["cordoned"]) == (offers, annotation is not None)
    recorded = calls[0][-1].partition("=")[2]
    assert schedule.recorded({"metadata": {"annotations": {schedule.CORDONED: recorded}}}) == offers
