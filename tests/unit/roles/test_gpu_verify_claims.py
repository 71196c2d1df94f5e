# SPDX-License-Identifier: Apache-2.0
"""The checks of role gpu_verify where pods make claims (Dynamic Resource Allocation)."""

from __future__ import annotations

import pytest

from tests.unit.roles.test_gpu_verify import Board, checks, statuses

DRIVER = "gpu.jetson-k3s.github.io"


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board whose GPU the DRA driver gives out, all well; nobody asks for Docker's default runtime."""
    made = Board(api="dra", registers_again=True, engine={"unasked": "no Docker here"})
    made.install(monkeypatch)
    return made


def test_pods_ask_by_a_claim_of_their_own_and_name_no_runtime(board: Board) -> None:
    board.report()
    spec = board.manifests["pod1"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu-1"}]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert "runtimeClassName" not in spec
    uninvited = board.manifests["uninvited"]["spec"]
    assert "resourceClaims" not in uninvited and "resources" not in uninvited["containers"][0]


def test_a_node_without_a_slice_fails(board: Board) -> None:
    board.capacity = 0
    report = board.report()
    assert f"jetson-1 has no ResourceSlice of {DRIVER}" in report["failures"][0]


def test_a_device_that_is_tainted_fails_and_says_why(board: Board) -> None:
    board.taint = "hung"
    entry = checks(board.report())["allocatable"]
    assert entry["status"] == "failed"
    assert "hung (NoSchedule)" in entry["reason"]


def test_who_holds_a_claim_is_not_disturbed(board: Board) -> None:
    board.users = ["train"]
    report = board.report()
    assert statuses(report)["device-query"] == "skipped"
    assert "the GPU is in use by default/train" in checks(report)["device-query"]["reason"]


def test_a_claim_outlives_the_kubelet(board: Board) -> None:
    report = board.report("node", "access", "sharing", "hold", "restarted", "close")
    assert statuses(report)["kubelet-restart"] == "passed", report["failures"]
    assert "the DRA driver has registered again" in str(checks(report)["kubelet-restart"]["events"])
