# SPDX-License-Identifier: Apache-2.0
"""What verify.yml reports of a board that is well, in use, shared, or broken; what it leaves."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, reports_dir, run_playbook
from tests.lab import board, lab
from tests.lab.board import Board
from tests.lab.staging import RUNTIME_EDITOR, TOOLKIT_VERSION
from tests.reports.schema import validate

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "verify"
NAME = "jetson-1"
REPLICAS = 4
SHARED = {
    "version": "v1",
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": REPLICAS}]}},
}


@dataclass(frozen=True)
class Verified:
    """A run of verify.yml and the report that it wrote."""

    run: PlaybookRun
    report: Any

    def statuses(self) -> dict[str, str]:
        return {check["id"]: check["status"] for check in self.report["checks"]}

    def check(self, name: str) -> Any:
        return next(check for check in self.report["checks"] if check["id"] == name)


@pytest.fixture(scope="module")
def one() -> Iterator[Board]:
    with lab.fresh(LAB, ("xaviernx-jp5",)) as (fresh,):
        yield fresh


@pytest.fixture(scope="module")
def cluster(one: Board) -> Cluster:
    run_playbook(LAB, "site.yml").checked()
    return Cluster([one])


def verify(*variables: str, playbook: str = "verify.yml") -> Verified:
    path = reports_dir(LAB) / f"{NAME}.json"  # no earlier one: a run begins with moving that away
    run = run_playbook(LAB, playbook, *(f"--extra-vars={variable}" for variable in variables))
    assert path.exists(), run.output
    report = json.loads(path.read_text())
    validate(report)
    return Verified(run, report)


def nothing_is_left(cluster: Cluster) -> bool:
    return "gpu-verify" not in cluster.kubectl("get", "namespaces", "--output=name")


@contextmanager
def refusing_toolkit(one: Board) -> Iterator[None]:
    """The container toolkit knows none of the ids that the plugin hands out."""
    none = "EVERY_DEVICE = ()"
    shipped = one.exec("cat", TOOLKIT_VERSION)
    board.set_toolkit(one, "1.19.0")  # the first release that refuses any id
    one.exec("cp", RUNTIME_EDITOR, f"{RUNTIME_EDITOR}.whole")
    try:
        one.exec("sed", "-i", f"s/^EVERY_DEVICE = .*/{none}/", RUNTIME_EDITOR)
        one.exec("grep", "--line-regexp", none, RUNTIME_EDITOR)
        yield
    finally:
        one.exec("mv", f"{RUNTIME_EDITOR}.whole", RUNTIME_EDITOR)
        board.set_toolkit(one, shipped)


# Other faults: tests/unit/roles/test_gpu_verify.py, and a dead GPU: test_hardware_in_the_loop.py.
def test_broken_board_fails_the_right_check_with_its_fix(one: Board, cluster: Cluster) -> None:
    failing, reason, fix = "device-query", "unsupported device id", "nvidia-container-toolkit"
    with refusing_toolkit(one):
        verified = verify("gpu_verify_timeout=60")
    assert verified.run.returncode != 0
    report, check = verified.report, verified.check(failing)
    assert [name for name, status in verified.statuses().items() if status == "failed"] == [failing]
    assert "error" not in verified.statuses().values()
    assert (report["ok"], report["exit_code"]) == (False, 1)
    assert reason in check["reason"]
    assert fix in check["fix"]
    assert check["diagnosis"]
    assert reason in " ".join(verified.run.output.split())
    junit = ElementTree.parse(reports_dir(LAB) / "junit.xml")  # noqa: S314 - our own file
    failures = {case.get("name", ""): case.findtext("failure", "") for case in junit.iter("testcase")}
    (told,) = [text for name, text in failures.items() if text]
    assert failures[f"{failing}: {check['title']}"] == told
    page = html.unescape((reports_dir(LAB) / "index.html").read_text())
    for text in (told, page):
        assert check["reason"] in text
        assert check["fix"] in text
    assert nothing_is_left(cluster)


@pytest.fixture
def holder(cluster: Cluster) -> Iterator[str]:
    cluster.hold_gpu("train", NAME)
    try:
        wait_until(lambda: cluster.phase("train") == "Running", "the pod runs", 60)
        yield "train"
    finally:
        cluster.kubectl("delete", "pod", "train", "--grace-period=0", "--force")


def test_gpu_in_use_is_left_to_its_pod(cluster: Cluster, holder: str) -> None:
    before = cluster.started(holder)
    verified = verify()
    assert verified.report["ok"] is True
    assert verified.check("device-query")["reason"] == "the GPU is in use by default/train"
    assert verified.statuses()["allocatable"] == "passed"
    assert cluster.started(holder) == before
    assert nothing_is_left(cluster)


def test_undisturbed_mode_starts_no_pod_and_removes_what_a_cut_off_run_left(
    one: Board, cluster: Cluster
) -> None:
    cluster.kubectl("create", "namespace", f"gpu-verify-{NAME}")
    containers = ("docker", "ps", "--all", "--quiet", "--no-trunc")
    before = one.exec(*containers).split()
    verified = verify("gpu_verify_mode=undisturbed")
    # Old ones may go: the kubelet clears up after ended pods when it comes to it.
    assert set(one.exec(*containers).split()) <= set(before)
    assert (verified.report["ok"], verified.report["mode"]) == (True, "undisturbed")
    skipped = {name for name, status in verified.statuses().items() if status == "skipped"}
    assert skipped == {
        "device-query", "cuda-kernel", "non-root", "uninvited", "concurrency", "unified-memory",
        "kubelet-restart",
    }  # fmt: skip
    assert verified.check("concurrency")["reason"] == "mode undisturbed starts no pod"
    assert nothing_is_left(cluster)


# The last one: the GPU stays shared.
@pytest.mark.acceptance
def test_gpu_shared_by_site_yml_is_held_by_all_its_replicas_at_once_and_over_a_kubelet_restart(
    one: Board, cluster: Cluster, tmp_path: Path
) -> None:
    show = ("systemctl", "show", "--property=MainPID", "k3s")
    before = one.exec(*show)
    settings = tmp_path / "sharing.yml"
    settings.write_text(yaml.safe_dump({"gpu_device_plugin_config": SHARED, "gpu_verify_mode": "full"}))
    verified = verify(f"@{settings}", playbook="site.yml")
    assert verified.run.returncode == 0, verified.run.output
    assert verified.report["gpu"]["replicas"] == REPLICAS
    assert "concurrency" not in verified.statuses()
    assert set(verified.statuses().values()) == {"passed"}
    told = [event["event"] for event in verified.check("time-slicing")["events"]]
    pending = next(place for place, text in enumerate(told) if text.startswith("pod5 Pending"))
    assert {f"pod{number} Running" for number in range(1, REPLICAS + 1)} <= set(told[:pending])
    assert one.exec(*show) != before
    told = [event["event"] for event in verified.check("kubelet-restart")["events"]]
    assert told.index("holder Running") < told.index("the kubelet was restarted")
    assert nothing_is_left(cluster)
