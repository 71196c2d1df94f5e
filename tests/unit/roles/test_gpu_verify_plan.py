# SPDX-License-Identifier: Apache-2.0
"""How role gpu_verify verifies a board: the owner's image, the pods, and the board's part of the report."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import gpu_verify_plan as planning

from tests.unit.roles.places import Data

ALL, LINE = "device-query-arm64.tar.gz", "device-query-l4t32-arm64.tar.gz"
FILES: Data = {
    ALL: {"images": {"device-query:any": "sha256:1"}},
    LINE: {"images": {"device-query:r32": "sha256:2"}},
}
JETSON: Data = {
    "arch": "aarch64",
    "l4t": "36.4.3",
    "model": "a Jetson",
    "memory_bytes": 8,
    "power_mode": {"id": 2, "name": "MODE_30W"},
    "nvidia_runtime": {"version": "1.16.2"},
    "simulated": False,
}
SETTINGS: Any = {
    "host": "jetson-1",
    "node": "node-1",
    "mode": "standard",
    "api": "device-plugin",
    "kind": "board",
    "container_runtime": "docker",
    "timeout": 300,
}


def plan(jetson: Data | None = None, bundle: Data | None = None, **settings: Any) -> planning.Plan:
    given = {"files": FILES, "versions": {}} | (bundle or {})
    return planning.plan(JETSON | (jetson or {}), given, SETTINGS | settings)


@pytest.mark.parametrize(
    ("jetson", "files", "archive", "image"),
    [
        ({"l4t": "32.7.1"}, FILES, LINE, "device-query:r32"),
        ({}, FILES, ALL, "device-query:any"),
        ({"l4t": None}, FILES, ALL, "device-query:any"),
        ({"arch": "x86_64"}, FILES, "", ""),
        ({}, {}, "", ""),
        # A damaged one: preflight names the error.
        ({}, {ALL: {"error": "cut off", "images": None}}, ALL, ""),
    ],
)
def test_the_owners_image_is_the_one_for_the_boards_l4t_line(
    jetson: Data, files: Data, archive: str, image: str
) -> None:
    planned = plan(jetson, {"files": files})
    assert (planned["archive"], planned["image"]) == (archive, image)
    assert (planned["pods"]["own_image"], planned["loads"]) == (image, bool(archive))


def test_mode_undisturbed_loads_and_starts_nothing() -> None:
    planned = plan(mode="undisturbed")
    assert (planned["loads"], planned["busy"]) == (False, "mode undisturbed starts no pod")
    assert plan(mode="full")["busy"] == ""


@pytest.mark.parametrize(
    ("runtime", "api", "expected"),
    [
        ("docker", "device-plugin", None),
        ("containerd", "device-plugin", "nvidia"),
        ("containerd", "dra", None),
    ],
)
def test_pods_name_a_runtime_class_where_it_is_not_the_default(
    runtime: str, api: str, expected: str | None
) -> None:
    pods = plan(container_runtime=runtime, api=api)["pods"]
    assert (pods["runtime_class"], pods["api"], pods["node"]) == (expected, api, "node-1")


def test_a_stage_may_wait_for_several_things() -> None:
    planned = plan(timeout="20")  # as from the command line
    assert (planned["pods"]["timeout"], planned["stage_timeout"]) == (20, 240)


def test_the_report_has_the_board_and_says_when_it_is_the_labs() -> None:
    planned = plan(bundle={"versions": {"simulated": True}})
    assert planned["simulated"] is True
    assert plan({"simulated": True})["simulated"] is True, "without the lab's bundle"
    assert planned["board"] == {
        **{
            "name": "jetson-1",
            "node": "node-1",
            "kind": "board",
            "model": "a Jetson",
            "module": None,
            "soc": None,
        },
        **{"l4t": "36.4.3", "jetpack": None, "memory_bytes": 8, "power_mode": {"id": 2, "name": "MODE_30W"}},
    }
    assert plan()["simulated"] is False


@pytest.mark.parametrize(
    ("answer", "engine", "version"),
    [
        ({"engine": {"ServerVersion": "27.5.1"}}, {"ServerVersion": "27.5.1"}, "27.5.1"),
        ({"msg": "no Docker"}, {"unasked": "no Docker"}, None),
        ({}, {"unasked": "no answer"}, None),
    ],
)
def test_software_is_that_of_the_board(answer: Data, engine: Data, version: str | None) -> None:
    assert planning.engine_of(answer) == engine
    found = planning.software(answer, JETSON, "")
    assert (found["docker"], found["container_toolkit"], found["k3s"]) == (version, "1.16.2", None)
    assert "device_query" not in found
    assert planning.software(answer, JETSON, "device-query:any")["device_query"] == "device-query:any"


@pytest.mark.parametrize(
    ("restart", "stage", "error"),
    [
        ({"status": {}}, "restarted", ""),
        ({"msg": "unit failed"}, "restarted", "unit failed"),
        ({}, "restarted", "no answer"),
        ({"msg": "unit failed"}, "close", ""),
    ],
)
def test_a_restart_that_failed_is_named_in_the_stage_after_it(restart: Data, stage: str, error: str) -> None:
    assert planning.restart_error(restart, stage) == error
