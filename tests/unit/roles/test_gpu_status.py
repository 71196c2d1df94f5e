# SPDX-License-Identifier: Apache-2.0
"""The look at the cluster: from what kubectl and the plugin say to a status and a table."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.roles.conftest import Load

GPU = "nvidia.com/gpu"
LABELS = {f"jetson-k3s.github.io/{key}": key.upper() for key in ("module", "l4t", "jetpack", "chip")}


@pytest.fixture
def filters(load: Load) -> ModuleType:
    return load("gpu_status/filter_plugins/gpu_status.py")


@pytest.fixture
def observe(load: Load) -> ModuleType:
    return load("k3s/library/k3s_observe.py")


def node(
    name: str = "a", ready: bool = True, capacity: int = 1, allocatable: int | None = None
) -> dict[str, Any]:
    healthy = capacity if allocatable is None else allocatable
    return {
        "name": name, "ready": ready, "message": "", "labels": LABELS,
        "capacity": {GPU: capacity}, "allocatable": {GPU: healthy},
    }  # fmt: skip


def pod(name: str, phase: str = "Running", on: str = "a", count: int = 1) -> dict[str, Any]:
    return {"namespace": "n", "name": name, "node": on, "phase": phase, "requests": {GPU: count}}


def says(*held: tuple[str, str]) -> dict[str, str]:
    """What `holders --output=json` prints."""
    holders = [
        {"namespace": "n", "pod": name, "container": "c", "resource": GPU, "device": device}
        for name, device in held
    ]
    return {"stdout": json.dumps({"holders": holders})}


def test_one_holder_of_one_gpu(filters: ModuleType) -> None:
    observed = {"nodes": [node()], "pods": [pod("p")], "answers": {"a": says(("p", "igpu0"))}}
    (one,) = filters.status(observed)["nodes"]
    assert one["resources"] == [
        {"name": GPU, "capacity": 1, "allocatable": 1, "used": 1, "sharing": "exclusive"}
    ]
    assert one["holders"][0]["phase"] == "Running"
    assert (one["module"], one["problem"]) == ("MODULE", None)
    head, line, held = filters.table(filters.status(observed)).splitlines()
    assert head.split() == list(filters.COLUMNS)
    assert line.split(maxsplit=5) == ["a", "Ready", "MODULE", "L4T", "JETPACK", "nvidia.com/gpu: 1 of 1 used"]
    assert held == "  nvidia.com/gpu igpu0: n/p container c"


def test_units_are_shown_by_their_number_and_memory_by_its_limit(filters: ModuleType) -> None:
    common = {"namespace": "n", "pod": "p", "container": "c"}
    holders = [
        {**common, "resource": "a.b/gpu-core", "device": "c3", "count": 30, "memory_limit_mib": None},
        {**common, "resource": "a.b/gpu-memory", "device": "m7", "count": 12, "memory_limit_mib": 3072},
    ]
    answers = {"a": {"stdout": json.dumps({"holders": holders})}}
    found = filters.status({"nodes": [node()], "pods": [pod("p")], "answers": answers})
    assert filters.table(found).splitlines()[2:] == [
        "  a.b/gpu-core 30 devices: n/p container c",
        "  a.b/gpu-memory 12 devices, 3072 MiB: n/p container c",
    ]


def test_a_shared_gpu_and_pods_that_wait_or_have_ended(filters: ModuleType) -> None:
    pods = [pod("p"), pod("q"), pod("waits", "Pending", on=""), pod("ended", "Succeeded")]
    observed = {
        "nodes": [node(capacity=4)],
        "pods": pods,
        "answers": {
            "a": says(("p", "igpu0::0"), ("q", "igpu0::1"), ("ended", "igpu0::2"), ("other", "igpu0::3"))
        },
    }
    found = filters.status(observed)
    (one,) = found["nodes"]
    assert one["resources"][0]["used"] == 2
    assert one["resources"][0]["sharing"] == "time-slicing"
    assert [holder["phase"] for holder in one["holders"]] == ["Running", "Running", "Succeeded", "gone"]
    text = filters.table(found)
    assert "2 of 4 used, one GPU shared" in text
    assert [line.endswith((" (Succeeded)", " (gone)")) for line in text.splitlines()[2:]] == [
        False,
        False,
        True,
        True,
    ]


def test_a_node_that_is_down_is_shown_with_the_reason_and_hides_no_other(filters: ModuleType) -> None:
    observed = {
        "nodes": [node("b", ready=False, allocatable=0), node("a")],
        "pods": [],
        "answers": {"a": says(), "b": {"problem": "the node is not Ready: no power"}},
    }
    found = filters.status(observed)
    assert [one["name"] for one in found["nodes"]] == ["a", "b"]
    assert found["nodes"][1]["holders"] is None
    lines = filters.table(found).splitlines()
    assert "NotReady" in lines[2] and "only 0 allocatable" in lines[2]
    assert lines[3] == "  who holds what is not known: the node is not Ready: no power"


@pytest.mark.parametrize("text", ["", "usage: ...", "[]", "{}"])
def test_a_plugin_that_does_not_know_the_question(filters: ModuleType, text: str) -> None:
    observed = {"nodes": [node()], "pods": [], "answers": {"a": {"stdout": text}}}
    (one,) = filters.status(observed)["nodes"]
    assert one["holders"] is None
    assert "said something else" in one["problem"]


def test_a_node_without_gpu_and_labels(filters: ModuleType) -> None:
    bare = {"name": "x", "ready": True, "message": "", "labels": {}, "capacity": {GPU: 0}, "allocatable": {}}
    observed = {"nodes": [bare], "pods": [], "answers": {"x": {"problem": "no pod"}}}
    assert filters.table(filters.status(observed)).splitlines()[1].split() == [
        "x",
        "Ready",
        "-",
        "-",
        "-",
        "none",
    ]


def test_what_kubectl_says_becomes_facts(observe: ModuleType) -> None:
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


def test_a_pod_takes_its_containers_devices_and_uses_its_init_containers_again(observe: ModuleType) -> None:
    def asks(count: int) -> dict[str, Any]:
        return {"resources": {"limits": {GPU: str(count), "cpu": "1"}}}

    spec: dict[str, Any] = {"containers": [asks(1), asks(2), {}]}
    assert observe.requests({"spec": spec}) == {GPU: 3}
    assert observe.requests({"spec": spec | {"initContainers": [asks(4), asks(1)]}}) == {GPU: 4}
    assert observe.requests({"spec": {"containers": [{}]}}) == {}


def test_pods_that_cannot_answer_are_not_asked(observe: ModuleType) -> None:
    def plugin(name: str, phase: str = "Running", **metadata: str) -> dict[str, Any]:
        return {"metadata": {"name": name, **metadata}, "spec": {"nodeName": "a"}, "status": {"phase": phase}}

    pods = [plugin("new", "Pending"), plugin("old", deletionTimestamp="now"), plugin("runs")]
    assert observe.speakers(pods) == {"a": "runs"}
    assert "not Ready" in observe.answer(node(ready=False), "runs", ["true"], 1)["problem"]
    assert "no pod" in observe.answer(node(), None, ["true"], 1)["problem"]


def test_a_kubectl_that_hangs_is_ended(
    observe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "k3s"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setitem(observe.run.__globals__, "K3S", str(hanging))
    assert "no answer within 0.1 s" in observe.answer(node(), "pod", ["true"], 0.1)["problem"]
