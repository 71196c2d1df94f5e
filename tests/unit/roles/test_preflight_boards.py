# SPDX-License-Identifier: Apache-2.0
"""Findings of boards beside each other: groups, clocks, memory, disks."""

from typing import Any

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.preflight_facts import GOOD, with_facts

module = load("preflight/filter_plugins/preflight_boards.py")


@pytest.mark.parametrize(
    ("sold", "requests", "left"),
    [
        ("", "1Gi", None),
        ("2Gi", "", 2 << 30),
        ("2Gi", "70Mi 170Mi 1G", (2 << 30) - (240 << 20) - 10**9),
        ("2Gi", "1500m 128974848 0.5Gi", (2 << 30) - 2 - 128974848 - (1 << 29)),
        ("5Gi", "", -(1 << 30)),
        ("much", "5Mim", 4 << 30),  # refused elsewhere
    ],
)
def test_memory_that_is_left_for_the_system(sold: str, requests: str, left: int | None) -> None:
    assert module.memory_left(4 << 30, sold, requests) == left


@pytest.mark.parametrize(
    ("groups", "ids"),
    [
        ({"server": ["a"], "agent": ["b"]}, []),
        ({"server": ["b"], "agent": ["a"]}, []),
        ({"server": ["a"], "agent": ["a"]}, ["group-both"]),
        ({"server": ["b"]}, ["group-none"]),
    ],
)
def test_board_belongs_to_one_group(groups: dict[str, list[str]], ids: list[str]) -> None:
    assert [entry["id"] for entry in module.findings_of_groups("a", groups)] == ids


def disks(**changes: dict[str, Any]) -> dict[str, Any]:
    """The good board's disks, some of them others."""
    return {name: disk | changes.get(name, {}) for name, disk in GOOD["disks"].items()}


SMALL = {"total_bytes": 16 * 10**9, "free_bytes": 2 * 10**9}
FULL = {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 0}
STORE = {"docker__containerd_store": True}
EVERYWHERE = dict.fromkeys(GOOD["disks"], SMALL)
NEARLY_FULL = dict.fromkeys(GOOD["disks"], SMALL | {"free_bytes": 7 * 10**8})
THERE = {"k3s__version": GOOD["bundle"]["k3s_version"]}


@pytest.mark.parametrize(
    ("changed", "more", "ids"),
    [
        ({}, {}, []),
        (NEARLY_FULL, {}, ["disk-full"]),
        # 16 GB: 1.5 GB are taken, and 0.5 GB are less than 5 %.
        (EVERYWHERE, {}, ["disk-eviction"]),
        (EVERYWHERE, THERE, []),
        (NEARLY_FULL, THERE, ["disk-eviction"]),
        # Docker's data on an SSD: what matters is what lies on the small disk.
        (EVERYWHERE | {"docker": {"filesystem": 2}}, {}, []),
        ({"k3s": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 3 * 10**8}}, {}, ["disk-full"]),
        ({"uploads": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 2 * 10**8}}, {}, ["disk-full"]),
        # Nobody evicts pods for the sake of uploads.
        ({"uploads": {"filesystem": 2, "total_bytes": 10**10, "free_bytes": 4 * 10**8}}, {}, []),
        ({"docker": {"filesystem": 2, "free_bytes": 0}}, {"container_runtime": "containerd"}, []),
        ({"k3s": {"type": "overlay"}, "kubelet": {"type": "overlay"}}, {}, ["disk-volatile"]),
        ({"docker": {"read_only": True}}, {}, ["disk-volatile"]),
        ({"docker": {"type": "tmpfs"}}, {"container_runtime": "containerd"}, []),
        # Docker's images in the containerd image store.
        ({"containerd": FULL}, {}, []),
        ({"containerd": FULL}, STORE, ["disk-full"]),
        ({"containerd": {"type": "tmpfs"}}, STORE, ["disk-volatile"]),
        ({"docker": FULL | {"free_bytes": 10**8}}, STORE, []),
        # Docker starts without its images, and gets them again.
        ({"docker": FULL | {"free_bytes": 10**8}}, THERE, []),
        ({"docker": FULL | {"free_bytes": 10**8}}, THERE | {"docker__starts_empty": True}, ["disk-full"]),
        (EVERYWHERE, THERE | {"docker__starts_empty": True}, []),
    ],
)
def test_room_is_judged_where_it_is_taken_and_against_the_kubelets_limit(
    changed: dict[str, Any], more: dict[str, Any], ids: list[str]
) -> None:
    facts = with_facts(disks=disks(**changed), **more)
    assert [entry["id"] for entry in module.findings_of_disks(facts)] == ids


def test_disk_is_named_by_what_lies_there() -> None:
    changed = {"k3s": {"filesystem": 2, "total_bytes": 10**9, "free_bytes": 3 * 10**8}}
    (found,) = module.findings_of_disks(with_facts(disks=disks(**changed)))
    assert found["found"] == "0.3 of 1.0 GB free on the disk with /var/lib/rancher/k3s"
    assert found["fix"].endswith("mount a larger disk on /var/lib/rancher/k3s.")


@pytest.mark.parametrize(
    ("changes", "plan", "empty"),
    [
        ({}, {}, False),
        ({"docker__data_root_moves": True}, {}, True),
        ({"docker__data_root_moves": True, "docker__running": False}, {}, False),
        ({"docker__data_root_moves": True, **STORE}, {}, False),
        ({}, {"features": {"containerd-snapshotter": True}}, True),
        (STORE, {"features": {"containerd-snapshotter": True}}, False),
        (STORE, {"features": {"containerd-snapshotter": False}}, True),
    ],
)
def test_docker_that_gets_another_place_for_images_starts_without_them(
    changes: dict[str, Any], plan: dict[str, Any], empty: bool
) -> None:
    docker = with_facts(**changes)["docker"]
    assert module.planned_docker(docker, {"daemon_json": plan})["starts_empty"] is empty


NOW = 1_000_020.0  # the boards were asked 20 s ago
HOUR = 3600


def clocks(**ahead: float) -> dict[str, dict[str, Any]]:
    asked = NOW - 20
    return {
        name: with_facts(clock={"board": asked + 10 + seconds, "asked": asked})
        for name, seconds in ahead.items()
    }


@pytest.mark.parametrize(
    ("board", "server", "ids", "fix"),
    [
        (0, 0, [], ""),
        (55, 0, [], ""),
        (-HOUR, -HOUR, [], ""),
        (-90, 0, ["clock-server-drift"], "On jetson-2: "),
        (90, 0, ["clock-server-drift"], "On jetson-2: "),
        (0, HOUR, ["clock-server"], "On jetson-1: "),
        (-400, 0, ["clock-server"], "On jetson-2: "),
        (-60 * 24 * HOUR, 0, ["clock"], "On jetson-2: "),
        (40 * 24 * HOUR, 40 * 24 * HOUR, ["clock"], "On jetson-2: "),
    ],
)
def test_clock_is_compared_with_the_controller_and_the_server(
    board: float, server: float, ids: list[str], fix: str
) -> None:
    fleet = clocks(**{"jetson-1": server, "jetson-2": board})
    found = module.findings_of_clock("jetson-2", fleet, "jetson-1", NOW)
    assert [entry["id"] for entry in found] == ids
    for entry in found:
        assert entry["fix"].startswith(fix)
        assert "this computer has 1970-01-12 13:47:00 (all UTC)" in entry["found"]


def test_clock_of_the_server_is_compared_with_the_controller() -> None:
    fleet = clocks(**{"jetson-1": -HOUR * 24 * 300})
    assert [entry["id"] for entry in module.findings_of_clock("jetson-1", fleet, "jetson-1", NOW)] == [
        "clock"
    ]


def test_a_slow_board_is_not_taken_for_a_wrong_clock() -> None:
    fleet = clocks(**{"jetson-1": 0, "jetson-2": 0})
    assert module.findings_of_clock("jetson-2", fleet, "jetson-1", NOW + 600) == []


def test_server_that_was_not_looked_at_is_not_compared() -> None:
    fleet = clocks(**{"jetson-2": -HOUR})
    assert module.findings_of_clock("jetson-2", fleet, "jetson-1", NOW) == []
