# SPDX-License-Identifier: Apache-2.0
"""The look at the cluster: from what kubectl and the plugin say to a status and a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.kubelet.pod_resources import ContainerAllocation
from tegra_device_plugin.telemetry.shares import Row, as_dict, rows

from tests.unit.roles.loading import load

filters = load("gpu_status/filter_plugins/gpu_status.py")
observe = load("k3s/library/k3s_observe.py")

GPU = "nvidia.com/gpu"
DRIVER = "gpu.jetson-k3s.github.io"
LABELS = {f"jetson-k3s.github.io/{key}": key.upper() for key in ("module", "l4t", "jetpack", "chip")}


def node(
    name: str = "a", ready: bool = True, capacity: int = 1, allocatable: int | None = None
) -> dict[str, Any]:
    healthy = capacity if allocatable is None else allocatable
    return {
        "name": name, "ready": ready, "message": "", "labels": LABELS,
        "capacity": {GPU: capacity}, "allocatable": {GPU: healthy},
    }  # fmt: skip


def pod(
    name: str, phase: str = "Running", on: str = "a", count: int = 1, unseen_by: str | None = None
) -> dict[str, Any]:
    return {
        "namespace": "n", "name": name, "node": on, "phase": phase, "unseen_by": unseen_by,
        "requests": {GPU: count}, "holds": {GPU: count},
    }  # fmt: skip


def look(answers: dict[str, Any], *pods: dict[str, Any], nodes: Sequence[dict[str, Any]] = ()) -> Any:
    """The status of a cluster without Dynamic Resource Allocation, by default with the node a."""
    seen = {"nodes": nodes or [node()], "pods": pods, "devices": [], "claims": [], "answers": answers}
    return filters.status(seen)


def says(*held: tuple[str, str]) -> dict[str, str]:
    """What `holders --output=json` prints, by its own hand."""
    holders = [ContainerAllocation("n", name, "c", GPU, device) for name, device in held]
    return {"stdout": json.dumps(as_dict(rows(holders, None, Path()), {}))}


def test_shares_are_shown_with_limit_use_and_weight() -> None:
    core = ContainerAllocation("n", "p", "c", "a.b/gpu-core", "c3", 30)
    memory = ContainerAllocation("n", "p", "c", "a.b/gpu-memory", "m7", 12)
    mib = 1 << 20
    shares = [
        Row("n", "p", "c", (core, memory), percent=30, limit=3072 * mib, used=0, resident=200 * mib),
        Row("n", "p", "d", (core,), percent=30),
    ]
    found = look({"a": {"stdout": json.dumps(as_dict(shares, {}))}}, pod("p", count=0))
    assert filters.table(found).splitlines()[2:] == [
        "  n/p container c: 30 a.b/gpu-core, 12 a.b/gpu-memory, weight 30 %, limit 3072 MiB, used 0 MiB, "
        "resident 200 MiB",
        "  n/p container d: 30 a.b/gpu-core, weight 30 %",
    ]


def test_rows_that_do_not_add_up_to_what_is_in_use_are_told() -> None:
    def table(*held: tuple[str, str]) -> list[str]:
        pods = (pod("p"), pod("q"), pod("ended", "Failed"), pod("elsewhere", on="b"))
        found = look({"a": says(*held)}, *pods, nodes=[node(capacity=4)])
        (resource,) = found["nodes"][0]["resources"]
        assert (resource["allocatable"], resource["free"]) == (4, 2)
        return [line for line in filters.table(found).splitlines() if "given out" in line]

    whole = [("p", "igpu0::0"), ("q", "igpu0::1")]
    assert table(*whole) == table(*whole, ("ended", "igpu0::2")) == []
    for held, count in ((whole[1:], 1), ([*whole, whole[0]], 3)):
        assert table(*held) == [
            f"  its kubelet has given out {count} of {GPU}, and its pods have asked for 2: "
            "look again, a pod may just begin or end"
        ]


def resource_slice(**device: Any) -> dict[str, Any]:
    attributes = {"sharing": {"string": "capacity"}, "multiprocessors": {"int": 16}}
    capacity = {"memory": {"value": "6Gi", "requestPolicy": {}}}
    devices = [{"name": "igpu-0", "attributes": attributes, "capacity": capacity, **device}]
    return {"spec": {"nodeName": "a", "driver": DRIVER, "pool": {"name": "a"}, "devices": devices}}


def resource_claim(name: str, **result: Any) -> dict[str, Any]:
    given = {"driver": DRIVER, "pool": "a", "device": "igpu-0", "request": "gpu", **result}
    return {
        "metadata": {"namespace": "n", "name": name},
        "status": {"allocation": {"devices": {"results": [given]}}, "reservedFor": [{"name": f"{name}-pod"}]},
    }


def test_claims_are_shown_at_the_device_that_they_have() -> None:
    taint = {"key": f"{DRIVER}/unhealthy", "value": "hung", "effect": "NoSchedule"}
    given = [
        resource_claim("left", consumedCapacity={"memory": "3Gi", "cores": "0"}),
        resource_claim("elsewhere", pool="b"),
        resource_claim("of-another", driver="gpu.example.com"),
    ]
    observed = {
        "nodes": [node(capacity=0) | {"labels": {**LABELS, "jetson-k3s.github.io/dra": "true"}}],
        "pods": [],
        "devices": observe.device_facts(resource_slice(taints=[taint])),
        "claims": [observe.claim_facts(claim) for claim in given],
        # The driver's pod is not asked.
        "answers": {"a": {"problem": "no pod of the device plugin runs there"}},
    }
    found = filters.status(observed)
    (device,) = found["nodes"][0]["devices"]
    assert (device["name"], device["sharing"]) == ("igpu-0", "capacity")
    assert device["capacity"] == {"memory": "6Gi"}
    assert [(claim["name"], claim["pods"]) for claim in device["claims"]] == [("left", ["left-pod"])]
    _, line, *below = filters.table(found).splitlines()
    assert line.endswith(f"{DRIVER}: 1 of 1 claimed")
    assert below == [
        f"  igpu-0 is given to nobody: {DRIVER}/unhealthy=hung:NoSchedule",
        "  n/left claims igpu-0, cores 0, memory 3Gi: left-pod",
    ]


def test_a_claim_that_was_given_nothing_holds_nothing() -> None:
    assert observe.claim_facts({"metadata": {"namespace": "n", "name": "new"}}) is None


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_does_not_know_of_claims_is_not_asked_for_them(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    items = [
        {"kind": "ResourceSlice", **resource_slice()},
        {"kind": "ResourceClaim", **resource_claim("one")},
    ]
    monkeypatch.setattr(observe, "knows", lambda _: known)
    monkeypatch.setattr(observe, "listed", lambda *_argv: items)
    devices, claims = observe.allocation()
    assert (len(devices), len(claims)) == ((1, 1) if known else (0, 0))


@pytest.mark.parametrize(
    ("spec", "status", "scheduler"),
    [
        ({"schedulerName": "gpushare-scheduler"}, {"phase": "Pending"}, "gpushare-scheduler"),
        ({"schedulerName": "default-scheduler"}, {"phase": "Pending"}, None),
        ({}, {"phase": "Pending"}, None),
        ({"schedulerName": "koord-scheduler", "nodeName": "a"}, {"phase": "Pending"}, None),
        ({"schedulerName": "koord-scheduler"}, {"phase": "Failed"}, None),
        # One that works says why it finds no node.
        (
            {"schedulerName": "volcano"},
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
            None,
        ),
    ],
)
def test_a_scheduler_that_looks_at_its_pods_leaves_a_trace(
    spec: dict[str, Any], status: dict[str, Any], scheduler: str | None
) -> None:
    assert observe.unseen_by({"spec": {"containers": [], **spec}, "status": status}) == scheduler


def test_a_shared_gpu_and_pods_that_wait_or_have_ended() -> None:
    pods = (pod("p"), pod("q"), pod("waits", "Pending", on=""), pod("ended", "Succeeded"))
    held = says(("p", "igpu0::0"), ("q", "igpu0::1"), ("ended", "igpu0::2"), ("other", "igpu0::3"))
    found = look({"a": held}, *pods, nodes=[node(capacity=4)])
    (one,) = found["nodes"]
    assert one["resources"][0]["used"] == 2
    assert one["resources"][0]["sharing"] == "time-slicing"
    assert [holder["phase"] for holder in one["holders"]] == ["Succeeded", "gone", "Running", "Running"]
    text = filters.table(found)
    assert "2 of 4 used, one GPU shared" in text
    ends = [line.partition("gpu")[2] for line in text.splitlines()[2:6]]
    assert ends == [" (Succeeded)", " (gone)", "", ""]
    assert "given out 3 of nvidia.com/gpu, and its pods have asked for 2" in text


@pytest.mark.parametrize("text", ["", "usage: ...", "[]", "{}"])
def test_a_plugin_that_does_not_know_the_question(text: str) -> None:
    (one,) = look({"a": {"stdout": text}})["nodes"]
    assert one["holders"] is None
    assert "said something else" in one["problem"]


def test_a_node_without_gpu_and_labels() -> None:
    bare = {"name": "x", "ready": True, "message": "", "labels": {}, "capacity": {GPU: 0}, "allocatable": {}}
    found = look({"x": {"problem": "no pod"}}, nodes=[bare])
    assert filters.table(found).splitlines()[1].split() == ["x", "Ready", "-", "-", "-", "none"]


def test_what_kubectl_says_becomes_facts() -> None:
    facts = observe.node_facts(
        {
            "metadata": {"name": "a"},
            "status": {
                "capacity": {"cpu": "4", "memory": "8Gi", "hugepages-2Mi": "0", GPU: "4"},
                "allocatable": {"cpu": "3500m", GPU: "0"},
                "conditions": [{"type": "Ready", "status": "Unknown", "message": "stopped posting"}],
            },
        }
    )
    assert facts["capacity"] == {GPU: 4}
    assert facts["allocatable"] == {GPU: 0}
    assert (facts["ready"], facts["message"], facts["labels"]) == (False, "stopped posting", {})


def test_a_pod_takes_its_containers_devices_and_uses_its_init_containers_again() -> None:
    def asks(count: int) -> dict[str, Any]:
        return {"resources": {"limits": {GPU: str(count), "cpu": "1"}}}

    spec: dict[str, Any] = {"containers": [asks(1), asks(2), {}]}
    assert observe.requests({"spec": spec}) == {GPU: 3}
    assert observe.requests({"spec": spec | {"initContainers": [asks(4), asks(1)]}}) == {GPU: 4}
    assert observe.requests({"spec": {"containers": [{}]}}) == {}
    stays = asks(2) | {"restartPolicy": "Always"}
    assert observe.requests({"spec": spec | {"initContainers": [asks(4), stays, asks(1)]}}) == {GPU: 5}
    assert observe.requests({"spec": spec | {"initContainers": [stays, asks(4)]}}) == {GPU: 6}
    assert observe.holds({"spec": spec | {"initContainers": [stays, asks(4)]}}) == {GPU: 5}


@pytest.mark.parametrize(
    ("quantity", "number"), [("4", 4), ("2k", 2000), ("4Gi", 4 << 30), ("1Ki", 1024), ("1e3", 1000)]
)
def test_a_foreign_resource_may_be_counted_in_bytes(quantity: str, number: int) -> None:
    assert observe.extended({"koordinator.sh/gpu-memory": quantity}) == {"koordinator.sh/gpu-memory": number}


def test_pods_that_cannot_answer_are_not_asked() -> None:
    def plugin(name: str, phase: str = "Running", **metadata: str) -> dict[str, Any]:
        return {"metadata": {"name": name, **metadata}, "spec": {"nodeName": "a"}, "status": {"phase": phase}}

    pods = [plugin("new", "Pending"), plugin("old", deletionTimestamp="now"), plugin("runs")]
    assert observe.speakers(pods) == {"a": "runs"}
    assert "not Ready" in observe.answer(node(ready=False), ["runs"], ["true"], 1)["problem"]
    assert "no pod" in observe.answer(node(), [], ["true"], 1)["problem"]


Pretend = Callable[[str], None]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    def pretend(script: str) -> None:
        program = tmp_path / "k3s"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setitem(observe.run.__globals__, "K3S", str(program))

    return pretend


def test_the_second_pod_is_asked_if_the_first_gives_no_answer(kubectl: Pretend) -> None:
    kubectl('[ "$4" != agent ] || exit 1\necho "$4 says"')
    assert observe.answer(node(), ["agent", "plugin"], ["true"], 5) == {"stdout": "plugin says\n"}
    assert observe.answer(node(), ["plugin2", "plugin"], ["true"], 5) == {"stdout": "plugin2 says\n"}


def test_a_kubectl_that_has_nothing_to_list_prints_nothing(kubectl: Pretend) -> None:
    kubectl("")
    assert observe.listed("pods", "--selector=nobody") == []


def test_a_kubectl_that_hangs_is_ended(kubectl: Pretend) -> None:
    kubectl("exec sleep 60")
    assert "no answer within 0.1 s" in observe.answer(node(), ["pod"], ["true"], 0.1)["problem"]
