# SPDX-License-Identifier: Apache-2.0
"""The weights over a simulated driver: set, kept, given up and put back."""

import asyncio
import logging
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tegra_device_plugin.agent import weights as module
from tegra_device_plugin.agent.nvgpu import MAX_TIMESLICE_US, MIN_TIMESLICE_US, Tsg
from tegra_device_plugin.agent.pods import Pods
from tegra_device_plugin.agent.weights import Weights, timeslices
from tegra_device_plugin.system.hosttree import HostTree

from tests.conformance.awaited import eventually
from tests.unit.plugin.agent.node import Node, Pod, uid
from tests.unit.plugin.agent.nvgpu import (
    GET_API_VERSION,
    GET_PARAMS,
    GET_TSG,
    GET_TSGS,
    PUT_TSG,
    SET_TIMESLICE,
    SimulatedNvgpu,
)

HARMLESS = {GET_API_VERSION, GET_TSGS, GET_PARAMS, GET_TSG, SET_TIMESLICE, PUT_TSG}


@pytest.fixture
def weights(node: Node, pods: Pods, driver: SimulatedNvgpu) -> Weights:
    node.admits(Pod(1, "small", percent=30))
    node.admits(Pod(2, "big", percent=70))
    node.admits(Pod(3, "none"))
    for pid, pod in {10: 1, 20: 2, 30: 3, 40: None}.items():
        node.process(pid, pod)
        driver.runs(pid + 1, pid)
    return Weights(HostTree(node.root), pods, driver)


def slices(driver: SimulatedNvgpu) -> dict[int, int]:
    return {context.pid: context.timeslice for context in driver.contexts.values()}


async def test_pods_get_slices_by_their_weights_and_others_keep_theirs(
    weights: Weights, driver: SimulatedNvgpu, node: Node
) -> None:
    await weights.observe()
    assert slices(driver) == {10: 6000, 20: 14_000, 30: 1024, 40: 1024}
    assert weights.state == "weighted"
    assert {(one.uid, one.timeslice_us) for one in weights.slices} == {(uid(1), 6000), (uid(2), 14_000)}
    assert driver.opened == [f"{node.root}/dev/nvgpu/igpu0/sched"]


async def test_nothing_is_set_that_is_right_already(weights: Weights, driver: SimulatedNvgpu) -> None:
    await weights.observe()
    await weights.observe()
    assert sorted(driver.slices_set) == [(11, 6000), (21, 14_000)]  # each setting wakes the GPU
    driver.contexts[11].timeslice = 20_000  # what a program can do with its own context
    await weights.observe()
    assert slices(driver)[10] == 6000


async def test_a_context_is_set_when_it_has_a_runlist_and_not_before(
    weights: Weights, driver: SimulatedNvgpu
) -> None:
    driver.runs(13, 10, compute=0)  # the simulated driver raises BoardCrashedError if it is set now
    await weights.observe()
    assert driver.contexts[13].timeslice == 1024
    driver.contexts[13].compute = 2
    await weights.observe()
    assert driver.contexts[13].timeslice == 3000


async def test_the_end_restores_the_original_slices(
    weights: Weights, driver: SimulatedNvgpu, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OBSERVE_SECONDS", 0.01)
    driver.contexts[11].timeslice = 629  # a Nano's own, which cannot be set
    driver.contexts[21].timeslice = 2600  # a program's priority
    task = asyncio.ensure_future(weights.run())
    await eventually(lambda: len(driver.slices_set) == 2)
    assert driver.is_open
    node.process(12, 1)
    driver.runs(12, 12)
    await eventually(lambda: driver.contexts[12].timeslice == 3000)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert slices(driver) == {10: 1000, 12: 1024, 20: 2600, 30: 1024, 40: 1024}
    assert not driver.is_open


async def test_an_end_during_a_call_restores_them_too(weights: Weights, driver: SimulatedNvgpu) -> None:
    within, go_on = threading.Event(), threading.Event()

    def wait(request: int) -> None:
        if request == SET_TIMESLICE and not go_on.is_set():
            within.set()
            go_on.wait(5)

    driver.before_call = wait
    task = asyncio.ensure_future(weights.run())
    assert await asyncio.to_thread(within.wait, 5)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with suppress(asyncio.CancelledError):
        await task
    assert driver.slices_set[0][1] != 1024
    assert set(slices(driver).values()) == {1024}
    assert not driver.is_open


async def test_the_end_does_not_wait_for_a_kubelet(
    weights: Weights, driver: SimulatedNvgpu, node: Node
) -> None:
    await weights.observe()
    queries = node.kubelet.queries
    node.process(99, 77)
    driver.runs(99, 99)  # of a pod that needs a query of the kubelet
    await weights._restore()
    assert (node.kubelet.queries, set(slices(driver).values())) == (queries, {1024})


async def test_a_busy_node_is_logged_once_and_retried(
    weights: Weights, driver: SimulatedNvgpu, caplog: pytest.LogCaptureFixture
) -> None:
    driver.opened_by_another = True
    with caplog.at_level(logging.INFO):
        await weights.observe()
        await weights.observe()
        assert weights.state == "busy"
        assert [record.message for record in caplog.records] == [
            "GPU time is not divided by weights: another process has opened /dev/nvgpu/igpu0/sched, and "
            "nvgpu allows one: another agent, or a container with access to the node"
        ]
        driver.opened_by_another = False
        await weights.observe()
    assert caplog.records[-1].message == "GPU time is divided by weights again"


async def test_older_releases_have_the_node_under_its_old_name_and_others_have_none(
    weights: Weights, driver: SimulatedNvgpu, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    (node.root / "dev/nvgpu/igpu0/sched").unlink()
    await weights.observe()
    assert driver.opened == [f"{node.root}/dev/nvhost-sched-gpu"]
    await weights._restore()
    (node.root / "dev/nvhost-sched-gpu").unlink()
    await weights.observe()
    assert weights.state == "unsupported"
    assert "there is no /dev/nvgpu/igpu0/sched or /dev/nvhost-sched-gpu" in caplog.text


@pytest.mark.parametrize("version", [0, 2])
async def test_another_interface_is_unsupported(
    version: int, weights: Weights, driver: SimulatedNvgpu, caplog: pytest.LogCaptureFixture
) -> None:
    driver.version = version
    await weights.observe()
    assert (weights.state, driver.is_open) == ("unsupported", False)
    assert f"version {version}" in caplog.text


async def test_a_rejected_time_slice_does_not_stop_the_others(
    weights: Weights, driver: SimulatedNvgpu, caplog: pytest.LogCaptureFixture
) -> None:
    driver.longest = 10_000
    for _ in range(3):
        await weights.observe()
    assert (slices(driver)[10], slices(driver)[20]) == (6000, 1024)
    assert {(one.uid, one.timeslice_us) for one in weights.slices} == {(uid(1), 6000), (uid(2), 1024)}
    assert driver.contexts[21].references == 1
    refusal = "context 21 of process 20: nvgpu rejects 14000 us: Invalid argument"
    assert [record.message for record in caplog.records] == [refusal]


async def test_a_context_that_ends_between_list_and_set_does_no_harm(
    weights: Weights, driver: SimulatedNvgpu
) -> None:
    def end_it(request: int) -> None:
        if request == GET_TSG and 11 in driver.contexts:
            driver.ends(11)

    driver.before_call = end_it
    await weights.observe()
    assert (weights.state, slices(driver)[20]) == ("weighted", 14_000)


async def test_a_driver_that_hangs_is_waited_for_and_not_called_again(
    weights: Weights, driver: SimulatedNvgpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    await weights.observe()
    monkeypatch.setattr(weights._blocking, "_deadline", 0.05)
    go_on = threading.Event()
    driver.before_call = lambda _request: go_on.wait(5)
    await weights.observe()
    calls = len(driver.calls)
    await weights.observe()
    assert (weights.state, driver.is_open, len(driver.calls)) == ("failing", True, calls)
    go_on.set()
    await weights._blocking.settle()
    monkeypatch.setattr(weights._blocking, "_deadline", 3.0)
    await weights.observe()
    assert weights.state == "weighted"


async def test_no_call_ever_locks_control(weights: Weights, driver: SimulatedNvgpu, node: Node) -> None:
    await weights.observe()
    node.process(21, 2)
    driver.runs(50, 21)
    driver.bitmap_bytes = 128
    driver.contexts[11].timeslice = 5000
    await weights.observe()
    assert (driver.contexts[50].timeslice, driver.contexts[11].timeslice) == (7000, 6000)
    driver.longest = 5000
    driver.ends(50)
    await weights.observe()
    await weights._restore()
    assert set(driver.calls) <= HARMLESS


def contexts(*pids: int) -> list[Tsg]:
    return [Tsg(number, pid, 1024, "cta", ready=True) for number, pid in enumerate(pids)]


@pytest.mark.parametrize(
    ("percent", "of_each", "microseconds"),
    [
        (100, 1, 20_000),
        (30, 1, 6000),
        (70, 1, 14_000),
        (30, 3, 2000),
        (5, 1, 1000),
        (1, 1, MIN_TIMESLICE_US),
        (30, 7, MIN_TIMESLICE_US),
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
    assert all(MIN_TIMESLICE_US <= microseconds <= MAX_TIMESLICE_US for microseconds in found.values())
