# SPDX-License-Identifier: Apache-2.0
"""Which pods keep the role from giving the GPU out in the other way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tegra_device_plugin.config.units import PRESETS

from tests.unit.roles.loading import load

module = load("gpu_device_plugin/library/gpu_api_users.py")

DRIVER = "gpu.jetson-k3s.github.io"


def pod(name: str, resource: str = "nvidia.com/gpu", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    container = {"resources": {"limits": {resource: "1", "memory": "1Gi"}}}
    return {
        "metadata": {"namespace": "n", "name": name},
        "status": {"phase": phase},
        "spec": {"containers": [container], "nodeName": "a", **spec},
    }


def claim(name: str, *pods: str, driver: str = DRIVER) -> dict[str, Any]:
    results = [{"driver": driver, "pool": "a", "device": "igpu-0"}]
    return {
        "metadata": {"namespace": "n", "name": name},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"name": one} for one in pods],
        },
    }


def cluster(monkeypatch: pytest.MonkeyPatch, deployed: str, settings: dict[str, Any] | None = None) -> None:
    """A SIMULATED kubectl of a cluster with one of the DaemonSets."""
    config_map = {"data": {"config.yaml": json.dumps(settings)}} if settings else None
    objects: dict[tuple[str, str], Any] = {("daemonset", deployed): {}, ("configmap", deployed): config_map}
    lists = {
        "pods": [
            pod("train"),
            pod("ended", phase="Succeeded"),
            pod("waits", nodeName=""),
            pod("other", "example.com/fpga"),
            pod("named", "example.com/share"),
        ],
        "resourceclaims": [
            claim("held", "user"),
            claim("free"),
            claim("foreign", "user2", driver="gpu.example.com"),
            {"metadata": {"namespace": "n", "name": "new"}},
        ],
    }
    monkeypatch.setattr(module, "get", lambda kind, _namespace, name: objects.get((kind, name)))
    monkeypatch.setattr(module, "listed", lambda kind, _all: lists[kind])


SHARE = "example.com/share"


@pytest.mark.parametrize(
    ("wanted", "deployed", "sharing", "users"),
    [
        ("device-plugin", "tegra-dra-driver", None, ["n/user"]),
        ("device-plugin", "tegra-device-plugin", None, []),
        ("dra", "tegra-dra-driver", None, []),
        ("dra", "tegra-device-plugin", None, ["n/train"]),
        # The settings may name the resource.
        (
            "dra",
            "tegra-device-plugin",
            {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "rename": SHARE}]}},
            ["n/named", "n/train"],
        ),
        ("dra", "tegra-device-plugin", {"units": {"memoryResource": SHARE}}, ["n/named", "n/train"]),
    ],
)
def test_pods_that_use_the_gpu_in_the_other_way_are_found(
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    deployed: str,
    sharing: dict[str, Any] | None,
    users: list[str],
) -> None:
    cluster(monkeypatch, deployed, {"version": "v1", "sharing": sharing} if sharing else None)
    assert module.users(wanted) == users


@pytest.mark.parametrize("name", [name for preset in PRESETS.values() for name in preset.names])
def test_every_resource_of_the_plugin_is_known(name: str) -> None:
    assert module.holders([pod("p", name)], set()) == ["n/p"]
