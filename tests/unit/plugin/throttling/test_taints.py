# SPDX-License-Identifier: Apache-2.0
"""When a board's node has the taint, and which change of the Node that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.throttling import taints, throttle_sensors
from tegra_device_plugin.throttling.throttle_sensors import Reading

from tests.boards import sensors as simulated

OURS = {"key": "jetson-k3s.github.io/throttled", "effect": "PreferNoSchedule"}
OTHER = {"key": "example.com/slow", "effect": "NoExecute", "timeAdded": "2026-11-30T09:00:00Z"}
# Of a person, with the same key.
NAMESAKE = {**OURS, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("throttled_at", "now", "expected"),
    [(None, 0.0, False), (100.0, 100.0, True), (100.0, 699.0, True), (100.0, 700.0, False)],
)
def test_taint_is_wanted_until_some_time_after_the_last_throttling(
    throttled_at: float | None, now: float, expected: bool
) -> None:
    assert taints.is_wanted(throttled_at, now, 600) is expected


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        (None, True, [OURS]),
        ([OTHER], True, [OTHER, OURS]),
        ([NAMESAKE], True, [NAMESAKE, OURS]),
        ([OURS, OTHER], False, [OTHER]),
        ([NAMESAKE, OURS], False, [NAMESAKE]),
        ([OURS], False, []),
    ],
)
def test_patch_changes_one_taint_of_the_version_that_was_read(
    before: Any, wanted: bool, after: list[dict[str, str]]
) -> None:
    node = {"metadata": {"resourceVersion": "7"}, "spec": {} if before is None else {"taints": before}}
    assert taints.has_taint(node) is not wanted
    patch = taints.patch(node, wanted=wanted)
    assert patch == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": after}}
    assert taints.has_taint(patch) is wanted


@pytest.mark.parametrize(
    ("reading", "before", "expected"),
    [
        (Reading({}, {}), None, []),
        (Reading({"cooling_device0 (cpu)": 0}, {}), None, []),
        (Reading({"cooling_device0 (cpu)": 3}, {}), None, ["cooling_device0 (cpu) is at state 3"]),
        # Events before the start of this process.
        (Reading({}, {"oc1": 7}), None, []),
        (Reading({}, {"oc1": 7}), Reading({}, {"oc1": 7}), []),
        (
            Reading({}, {"oc1": 9, "oc3": 0}),
            Reading({}, {"oc1": 7, "oc3": 0}),
            ["over-current oc1: 2 events"],
        ),
        # An alarm that could not be read before, and one that begins again.
        (Reading({}, {"oc1": 9}), Reading({}, {}), []),
        (Reading({}, {"oc1": 0}), Reading({}, {"oc1": 9}), []),
    ],
)
def test_board_is_throttled_by_a_cooling_device_or_a_new_over_current_event(
    reading: Reading, before: Reading | None, expected: list[str]
) -> None:
    assert throttle_sensors.reasons(reading, before) == expected


def test_sensors_of_a_board_are_read_without_its_fan(tmp_path: Path) -> None:
    simulated.add(tmp_path)
    reading = throttle_sensors.read(HostTree(tmp_path))
    assert reading.overcurrent == {"oc1": 0, "oc3": 7}
    assert reading.cooling == {
        "cooling_device0 (cpufreq-cpu0)": 0,
        "cooling_device1 (thermal-devfreq-0)": 2,
        "cooling_device3 (cpu-throttle-alert)": 1,
    }
