# SPDX-License-Identifier: Apache-2.0
"""The taint on the node, by a simulated API server over HTTP and a board's simulated sensors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tegra_device_plugin.system.api_server import ApiServer, connected
from tegra_device_plugin.system.waiting import Backoff
from tegra_device_plugin.throttling import node_taint
from tegra_device_plugin.throttling.node_taint import NodeTaint

from tests.boards import sensors as simulated
from tests.conformance.awaited import eventually
from tests.conformance.fake_api import NODE, FakeApi, Fault, Request
from tests.unit.plugin.throttling.test_taints import OTHER, OURS

HOT = "sys/class/thermal/cooling_device1/cur_state"
COOL = ("sys/class/thermal/cooling_device1/cur_state", "sys/class/thermal/cooling_device3/cur_state")
EVENTS = "sys/class/hwmon/hwmon2/oc1_event_cnt"
LONG, SHORT = 600.0, 0.05


class Board:
    def __init__(self, root: Path) -> None:
        self.root = root
        simulated.add(root)
        self.cool()

    def heat(self) -> None:
        self.root.joinpath(HOT).write_text("2\n")

    def cool(self) -> None:
        for path in COOL:
            self.root.joinpath(path).write_text("0\n")

    def exceed_current(self) -> None:
        self.root.joinpath(EVENTS).write_text("1\n")


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "host")


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    monkeypatch.setattr(node_taint, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(node_taint, "RETRY", Backoff(first=0.01, cap=0.01))
    async with FakeApi() as fake:
        (tmp_path / "kubeconfig").write_text(fake.kubeconfig(tmp_path / "token"))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield fake


@asynccontextmanager
async def kept(board: Board, remove_after: float = LONG) -> AsyncIterator[NodeTaint]:
    """Keep the taint, and stop as the command does."""
    async with connected(ApiServer(NODE, "test")) as server:
        taint = NodeTaint(board.root, remove_after)
        task = asyncio.ensure_future(taint.run(server))
        try:
            yield taint
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await taint.withdraw(server)


def patches(request: Request) -> bool:
    return request.method == "PATCH"


@pytest.mark.parametrize("throttle", [Board.heat, Board.exceed_current])
async def test_node_of_a_throttled_board_has_the_taint_until_a_clean_stop(
    api: FakeApi, board: Board, throttle: Callable[[Board], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.set_taints(OTHER)
    async with kept(board) as taint:
        await api.until(lambda: len(api.requests) > 1, "first check")
        assert api.taints == [OTHER]
        throttle(board)
        await eventually(lambda: taint.is_set)
        assert api.taints == [OTHER, OURS]
        board.cool()
    assert api.taints == [OTHER]
    assert len([one for one in api.requests if patches(one)]) == 2
    reason = "cooling_device1 (thermal-devfreq-0)" if throttle is Board.heat else "over-current oc1: 1 events"
    assert reason in caplog.text
    assert "removed: this process stops" in caplog.text


async def test_taint_is_removed_some_time_after_the_last_throttling(api: FakeApi, board: Board) -> None:
    board.heat()
    async with kept(board, SHORT) as taint:
        await api.until(lambda: OURS in api.taints, "taint")
        board.cool()
        await api.until(lambda: api.taints == [], "removal")
        board.heat()
        await eventually(lambda: taint.writes.set == 2)
        assert (api.taints, taint.writes.removed, taint.writes.failures) == ([OURS], 1, 0)


async def test_left_over_taint_of_a_cool_board_is_removed(api: FakeApi, board: Board) -> None:
    api.set_taints(OURS, OTHER)
    async with kept(board, SHORT) as taint:
        await api.until(lambda: api.taints == [OTHER], "removal")
    # Not at the start: the board may have been cooled by a restart only.
    async with kept(board, LONG) as taint:
        api.set_taints(OURS)
        board.heat()
        await api.until(lambda: len(api.requests) > 3, "check")
        assert taint.writes.removed == 0
    assert api.taints == []


async def test_taints_that_another_client_sets_meanwhile_stay(api: FakeApi, board: Board) -> None:
    def set_meanwhile(request: Request) -> bool:
        if patches(request) and OTHER not in api.taints:
            api.set_taints(OTHER)
        return False

    api.faults.append(Fault(set_meanwhile))
    board.heat()
    async with kept(board) as taint:
        await api.until(lambda: OURS in api.taints, "taint")
        assert api.taints == [OTHER, OURS]
        assert taint.writes.failures == 0


async def test_taint_that_a_person_removes_is_set_again(
    api: FakeApi, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_taint, "CHECK_SECONDS", 0.01)
    board.heat()
    async with kept(board):
        await api.until(lambda: OURS in api.taints, "taint")
        api.set_taints(OTHER)
        await api.until(lambda: OURS in api.taints, "taint again")
        assert api.taints == [OTHER, OURS]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(patches, status=403, count=3),
        Fault(lambda _request: True, status=503, count=3),
        Fault(lambda request: not patches(request), status=200, body=b"<html>a proxy</html>", count=3),
        Fault(lambda request: not patches(request), status=200, body=b'{"spec": {"taints": [1]}}', count=3),
    ],
)
async def test_failures_are_retried_and_logged_once(
    api: FakeApi, board: Board, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.faults.append(fault)
    board.heat()
    async with kept(board) as taint:
        await eventually(lambda: taint.is_set)
        assert taint.writes.failures == 3
    assert caplog.text.count("the node's taints cannot be kept: the API server") == 1
    assert caplog.text.count("the node's taints are kept again") == 1


async def test_taint_that_stays_at_a_stop_is_logged(
    api: FakeApi, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    board.heat()
    async with kept(board) as taint:
        await eventually(lambda: taint.is_set)
        api.faults.append(Fault(patches, status=403))
    assert api.taints == [OURS]
    assert f"the taint {OURS['key']} may stay on node {NODE}: the API server: " in caplog.text


async def test_board_without_sensors_is_named_and_never_has_the_taint(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = Board(tmp_path / "bare")
    bare.root = tmp_path
    async with kept(bare):
        await api.until(lambda: len(api.requests) > 0, "check")
    assert "the taint is never set" in caplog.text
    assert api.taints == []
