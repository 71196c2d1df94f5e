# SPDX-License-Identifier: Apache-2.0
"""Weights as time slices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tegra_device_plugin.agent.nvgpu import LEAST_US, MOST_US, Tsg
from tegra_device_plugin.agent.weights import timeslices


def contexts(*pids: int) -> list[Tsg]:
    """One context each."""
    return [Tsg(number, pid, 1024, "cta", ready=True) for number, pid in enumerate(pids)]


@pytest.mark.parametrize(
    ("percent", "of_each", "microseconds"),
    [
        (100, 1, 20_000),
        (30, 1, 6000),
        (70, 1, 14_000),
        (30, 3, 2000),
        (5, 1, 1000),
        (1, 1, LEAST_US),
        (30, 7, LEAST_US),
    ],
)
def test_a_pods_contexts_divide_its_weight(percent: int, of_each: int, microseconds: int) -> None:
    found = timeslices(contexts(*[10] * of_each), {10: "a"}, {"a": percent})
    assert found == dict.fromkeys(range(of_each), microseconds)


@given(st.dictionaries(st.integers(1, 50), st.integers(0, 100)), st.lists(st.integers(1, 60), max_size=40))
def test_every_slice_is_one_that_the_driver_takes(percent: dict[int, int], pids: list[int]) -> None:
    pods = {pid: str(pid % 20) for pid in pids if pid < 50}
    weights = {str(pod): weight for pod, weight in percent.items()}
    found = timeslices(contexts(*pids), pods, weights)
    assert all(LEAST_US <= microseconds <= MOST_US for microseconds in found.values())
