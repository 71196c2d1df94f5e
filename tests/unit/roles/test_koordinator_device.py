# SPDX-License-Identifier: Apache-2.0
"""Whose Koordinator's Device is, and what is written of ours."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from tests.unit.roles.conftest import Load

LABEL = "app.kubernetes.io/managed-by"
DEVICE: dict[str, Any] = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {"name": "jetson-1", "labels": {LABEL: "jetson-k3s"}},
    "spec": {"devices": [{"type": "gpu", "health": True}]},
}


class EndedError(Exception):
    """The module's end."""


class Cluster:
    """A SIMULATED kubectl: the objects that there are, by kind."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = module
        self.objects: dict[str, Any] = {
            "customresourcedefinition": {},
            "node": {"metadata": {"name": "jetson-1", "uid": "u-1"}},
        }
        self.applied: list[Any] = []
        self.check_mode = False
        monkeypatch.setattr(module, "get", lambda kind, _name: self.objects.get(kind))
        monkeypatch.setattr(module, "run", self.run)
        monkeypatch.setattr(module.os.path, "exists", lambda _path: True)
        monkeypatch.setattr(module, "AnsibleModule", lambda **_options: self)
        self.params = {"device": DEVICE}

    def run(self, verb: str, *_argv: str, stdin: str, accept: tuple[int, ...] = (0,)) -> str:
        """Answer `diff` and `apply`."""
        wanted = json.loads(stdin)
        if verb == "diff":
            return "" if self.objects.get(self.module.KIND) == wanted else "+ health: true"
        self.applied.append(wanted)
        self.objects[self.module.KIND] = wanted
        return ""

    def exit_json(self, **result: Any) -> None:
        """Keep the result, and end."""
        self.result = result
        raise EndedError

    def play(self) -> Any:
        """Run the module."""
        with pytest.raises(EndedError):
            self.module.main()
        return self.result


@pytest.fixture
def cluster(load: Load, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster with Koordinator's CRD and the node."""
    return Cluster(load("gpu_device_plugin/library/koordinator_device.py"), monkeypatch)


def test_device_is_made_once_and_goes_with_its_node(cluster: Cluster) -> None:
    assert cluster.play()["changed"] is True
    (owner,) = cluster.applied[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "jetson-1", "u-1")
    assert cluster.applied[0]["spec"] == DEVICE["spec"]
    assert cluster.play()["changed"] is False
    assert len(cluster.applied) == 1


def test_check_mode_writes_nothing(cluster: Cluster) -> None:
    cluster.check_mode = True
    assert cluster.play()["changed"] is True
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
