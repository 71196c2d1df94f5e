# SPDX-License-Identifier: Apache-2.0
"""Whose Koordinator's Device is, and what is written of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.playing import outcome

module = load("gpu_device_plugin/library/koordinator_device.py")
LABEL = "app.kubernetes.io/managed-by"
DEVICE: dict[str, Any] = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {"name": "jetson-1", "labels": {LABEL: "jetson-k3s"}},
    "spec": {"devices": [{"type": "gpu", "health": True}]},
}


class Cluster:
    """A SIMULATED kubectl with Koordinator's CRD and the node: the objects that there are, by kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.objects: dict[str, Any] = {
            "customresourcedefinition": {},
            "node": {"metadata": {"name": "jetson-1", "uid": "u-1"}},
        }
        self.applied: list[Any] = []
        monkeypatch.setattr(module, "get", lambda kind, _name: self.objects.get(kind))
        monkeypatch.setattr(module, "run", self.run)
        monkeypatch.setattr(module.os.path, "exists", lambda _path: True)

    def run(self, verb: str, *_argv: str, stdin: str, accept: tuple[int, ...] = (0,)) -> str:
        wanted = json.loads(stdin)
        if verb == "diff":
            return "" if self.objects.get(module.KIND) == wanted else "+ health: true"
        self.applied.append(wanted)
        self.objects[module.KIND] = wanted
        return ""

    def play(self, check_mode: bool = False) -> dict[str, Any]:
        return outcome(self.patch, module, {"device": DEVICE}, check_mode)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_device_is_made_once_and_goes_with_its_node(cluster: Cluster) -> None:
    assert cluster.play()["changed"] is True
    (owner,) = cluster.applied[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "jetson-1", "u-1")
    assert cluster.applied[0]["spec"] == DEVICE["spec"]
    assert cluster.play()["changed"] is False
    assert len(cluster.applied) == 1


def test_check_mode_writes_nothing(cluster: Cluster) -> None:
    assert cluster.play(check_mode=True)["changed"] is True
    assert cluster.applied == []


@pytest.mark.parametrize(
    ("objects", "found"),
    [
        ({"customresourcedefinition": None}, "does not have the CRD devices.scheduling.koordinator.sh"),
        ({"devices.scheduling.koordinator.sh": {"metadata": {"labels": None}}}, "koordlet makes it"),
        ({"devices.scheduling.koordinator.sh": {"metadata": {"labels": {"a": "b"}}}}, "koordlet makes it"),
        ({"node": None}, "does not have this node"),
    ],
)
def test_device_that_is_not_ours_to_make_is_left_alone(
    cluster: Cluster, objects: dict[str, Any], found: str
) -> None:
    cluster.objects |= objects
    result = cluster.play()
    assert (result["changed"], cluster.applied) == (False, [])
    assert found in result["found"]
