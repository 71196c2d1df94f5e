# SPDX-License-Identifier: Apache-2.0
"""The control node: the calls of the driver, and the effects of its answers and errors."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from tegra_device_plugin.agent.nvgpu import ControlNode, Tsg

from tests.unit.plugin.agent.nvgpu import GET_PARAMS, GET_TSGS, SET_TIMESLICE, SimulatedNvgpu


@pytest.fixture
def node(driver: SimulatedNvgpu) -> Iterator[ControlNode]:
    with closing(ControlNode("/dev/nvhost-sched-gpu", driver)) as one:
        yield one


def test_contexts_are_listed_with_their_processes(driver: SimulatedNvgpu, node: ControlNode) -> None:
    driver.runs(0, 4321)
    driver.runs(70, 99, compute=4)
    driver.runs(5, 7, compute=0)
    assert node.tsgs() == [
        Tsg(0, 4321, 1024, "cta", ready=True),
        Tsg(5, 7, 1024, "", ready=False),
        Tsg(70, 99, 1024, "cilp", ready=True),
    ]


def test_the_size_of_a_driver_with_more_contexts_is_remembered(
    driver: SimulatedNvgpu, node: ControlNode
) -> None:
    driver.bitmap_bytes = 256
    driver.runs(2000, 1)
    assert [tsg.id for tsg in node.tsgs()] == [2000]
    driver.calls.clear()
    node.tsgs()
    assert driver.calls.count(GET_TSGS) == 1


def test_a_context_that_ends_during_the_listing_is_left_out(
    driver: SimulatedNvgpu, node: ControlNode
) -> None:
    driver.runs(1, 10)
    driver.runs(2, 20)

    def end_it(request: int) -> None:
        if request == GET_PARAMS:
            driver.contexts.pop(1, None)

    driver.before_call = end_it
    assert [tsg.id for tsg in node.tsgs()] == [2]


@pytest.mark.parametrize("newcomer", [{"pid": 77, "compute": 2}, {"pid": 10, "compute": 0}])
def test_a_number_with_a_new_owner_or_without_a_runlist_is_left_alone(
    driver: SimulatedNvgpu, node: ControlNode, newcomer: dict[str, int]
) -> None:
    driver.runs(3, 10)
    (tsg,) = node.tsgs()
    driver.ends(3)
    driver.runs(3, **newcomer)
    assert not node.set_timeslice(tsg, 6000)
    assert (driver.contexts[3].timeslice, driver.contexts[3].references) == (1024, 1)


def test_a_context_cannot_change_hands_while_its_slice_is_set(
    driver: SimulatedNvgpu, node: ControlNode
) -> None:
    driver.runs(3, 10)
    (tsg,) = node.tsgs()
    driver.before_call = lambda request: driver.ends(3) if request == SET_TIMESLICE else None
    assert node.set_timeslice(tsg, 6000)
    assert driver.contexts == {}  # the last reference was ours
