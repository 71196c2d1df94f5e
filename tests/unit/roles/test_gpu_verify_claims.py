# SPDX-License-Identifier: Apache-2.0
"""The checks of role gpu_verify where pods make claims (Dynamic Resource Allocation)."""

from __future__ import annotations

import pytest

from tests.unit.roles.conftest import Load
from tests.unit.roles.fake_cluster import FakeCluster
from tests.unit.roles.test_gpu_verify import Verification, checks, statuses

DRIVER = "gpu.jetson-k3s.github.io"


@pytest.fixture
def cluster() -> FakeCluster:
    """A node whose GPU the DRA driver gives out, all well."""
    return FakeCluster(api="dra", registers_again=True)


@pytest.fixture
def verification(load: Load, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Verification:
    """The stages against that cluster; nobody cares what Docker's default runtime is."""
    made = Verification(load, cluster, monkeypatch)
    made.given["engine"] = {"unasked": "no Docker here"}
    return made


def test_a_board_passes_by_claims_and_names_the_class(verification: Verification) -> None:
    report = verification.report()
    assert report["failures"] == []
    assert "default-runtime" not in statuses(report)
    assert (report["gpu"]["resource"], report["gpu"]["allocatable"]) == (DRIVER, 1)
    proof = checks(report)["concurrency"]["evidence"]
    assert any("cannot allocate all claims" in line for line in proof)


def test_pods_ask_by_a_claim_of_their_own_and_name_no_runtime(
    verification: Verification, cluster: FakeCluster
) -> None:
    verification.report()
    spec = cluster.manifests["pod1"]["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu-1"}]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert "runtimeClassName" not in spec
    uninvited = cluster.manifests["uninvited"]["spec"]
    assert "resourceClaims" not in uninvited and "resources" not in uninvited["containers"][0]


def test_each_share_is_held_at_the_same_time(verification: Verification, cluster: FakeCluster) -> None:
    cluster.share(3)
    report = verification.report()
    assert report["failures"] == []
    assert statuses(report)["time-slicing"] == "passed"
    assert report["gpu"]["resource"] == f"shared.{DRIVER}"
    assert {"pod1", "pod2", "pod3", "pod4"} <= cluster.manifests.keys()


def test_a_node_without_a_slice_fails(verification: Verification, cluster: FakeCluster) -> None:
    cluster.capacity = 0
    report = verification.report()
    assert f"jetson-1 has no ResourceSlice of {DRIVER}" in report["failures"][0]


def test_a_device_that_is_tainted_fails_and_says_why(
    verification: Verification, cluster: FakeCluster
) -> None:
    cluster.taint = "hung"
    entry = checks(verification.report())["allocatable"]
    assert entry["status"] == "failed"
    assert "hung (NoSchedule)" in entry["reason"]


def test_who_holds_a_claim_is_not_disturbed(verification: Verification, cluster: FakeCluster) -> None:
    cluster.users = ["train"]
    report = verification.report()
    assert statuses(report)["device-query"] == "skipped"
    assert "the GPU is in use by default/train" in checks(report)["device-query"]["reason"]


def test_a_claim_outlives_the_kubelet(verification: Verification) -> None:
    report = verification.report("node", "access", "sharing", "hold", "restarted", "close")
    assert statuses(report)["kubelet-restart"] == "passed", report["failures"]
    assert "the DRA driver has registered again" in str(checks(report)["kubelet-restart"]["events"])
