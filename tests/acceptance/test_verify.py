# SPDX-License-Identifier: Apache-2.0
"""Verification of one board: playbooks/hil.py, verify.yml, the Job inside the cluster, a CI system's job.

The board is well, in use, shared and broken in turn. At the end a bundle alone makes it a node again.
"""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from images.arm64 import build as plugin
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.playbook import PlaybookRun, reports_dir, run_here, run_playbook
from tests.lab import board, inventory, lab, lab_dir
from tests.lab.board import Board
from tests.lab.bundle import write_release
from tests.lab.staging import RUNTIME_EDITOR, TOOLKIT_VERSION
from tests.reports.schema import validate
from tools import debian
from tools.cache import CHECKOUT
from tools.engine import docker
from tools.process import ToolError

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "verify"
NAME = "jetson-1"
VERIFY = CHECKOUT / "plugin" / "deploy" / "verify"
DOCKER = ("docker.io", "containerd", "runc")
REPLICAS = 4
SHARED = {
    "version": "v1",
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": REPLICAS}]}},
}


@pytest.fixture(scope="module")
def jetson() -> Iterator[Board]:
    with lab.fresh(LAB, ["agxorin-jp6"]) as (jetson,):
        board.switch_on_after_reboot(jetson, always=True)
        yield jetson


def hil(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run playbooks/hil.py on the lab."""
    lab_options = (f"--inventory={lab_dir(LAB) / 'inventory.ini'}", f"--reports={reports_dir(LAB)}")
    return run_here(sys.executable, CHECKOUT / "playbooks" / "hil.py", *lab_options, *arguments)


def published(reports: Path) -> tuple[dict[str, str], ElementTree.Element, str]:
    """What hil.py has published: each check's status, the JUnit XML and the page."""
    report = json.loads((reports / "jetson-1.json").read_text())
    validate(report)
    junit = ElementTree.fromstring((reports / "junit.xml").read_text())  # noqa: S314 - our own
    statuses = {check["id"]: check["status"] for check in report["checks"]}
    return statuses, junit, (reports / "index.html").read_text()


@pytest.fixture(scope="module")
def cluster(jetson: Board) -> Cluster:
    verified = hil("--keep")
    assert verified.returncode == 0, verified.stdout
    return Cluster([jetson])


def test_a_board_that_is_well_passes_every_check(cluster: Cluster) -> None:
    statuses, junit, page = published(reports_dir(LAB))
    # hil.py may not reboot boards.
    assert statuses == dict.fromkeys(statuses, "passed") | {"reboot": "skipped"}
    assert (junit.get("tests"), junit.get("failures"), junit.get("errors")) == (str(len(statuses)), "0", "0")
    assert "jetson-1 has passed" in page


def test_pod_with_the_gpu_comes_back_when_its_only_server_reboots(jetson: Board, cluster: Cluster) -> None:
    boot = board.boot_id(jetson)
    verified = verify("gpu_verify_mode=full", "gpu_verify_reboot=true")
    assert verified.run.returncode == 0, verified.run.output
    assert set(verified.statuses().values()) == {"passed"}
    assert board.boot_id(jetson) != boot
    told = [event["event"] for event in verified.check("reboot")["events"]]
    assert told.index("survivor Running") < told.index("the board was rebooted")
    assert nothing_is_left(cluster)


def start_job(jetson: Board) -> str:
    docker("cp", f"{VERIFY}/.", f"{jetson.container}:/root/verify")
    make = "k3s kubectl kustomize /root/verify | sed s/NODE/jetson-1/ | k3s kubectl apply -f -"
    jetson.exec("sh", "-c", make)
    return "job/gpu-verify-jetson-1"


def test_the_job_proves_the_node_from_inside(jetson: Board, cluster: Cluster) -> None:
    job = start_job(jetson)
    cluster.kubectl("wait", "--for=condition=Complete", "--timeout=120s", job)
    assert "state:               ready" in cluster.kubectl("logs", job, "--container=detect")
    assert "Result = PASS" in cluster.kubectl("logs", job, "--container=device-query")
    cluster.kubectl("delete", job)


def test_the_job_fails_where_no_gpu_is(jetson: Board, cluster: Cluster) -> None:
    board.set_state(jetson, "dead")
    try:
        wait_until(lambda: cluster.allocatable()[NAME] == 0, "the dead GPU is taken off the node", 60)
        job = start_job(jetson)
        cluster.kubectl("patch", job, "--patch", '{"spec": {"activeDeadlineSeconds": 5}}')
        cluster.kubectl("wait", "--for=condition=Failed", "--timeout=120s", job)
        cluster.kubectl("delete", job)
    finally:
        board.set_state(jetson, "ready")
    wait_until(lambda: cluster.allocatable()[NAME] == 1, "the recovered GPU is back", 90)


@dataclass(frozen=True)
class Verification:
    """A run of verify.yml and the report that it wrote."""

    run: PlaybookRun
    report: Any

    def statuses(self) -> dict[str, str]:
        return {check["id"]: check["status"] for check in self.report["checks"]}

    def check(self, name: str) -> Any:
        return next(check for check in self.report["checks"] if check["id"] == name)


def verify(*variables: str, playbook: str = "verify.yml") -> Verification:
    path = reports_dir(LAB) / f"{NAME}.json"  # a run begins with moving an earlier one away
    run = run_playbook(LAB, playbook, *(f"--extra-vars={variable}" for variable in variables))
    assert path.exists(), run.output
    report = json.loads(path.read_text())
    validate(report)
    return Verification(run, report)


def nothing_is_left(cluster: Cluster) -> bool:
    return "gpu-verify" not in cluster.kubectl("get", "namespaces", "--output=name")


@contextmanager
def refusing_toolkit(jetson: Board) -> Iterator[None]:
    """The container toolkit knows none of the ids that the plugin hands out."""
    none = "EVERY_DEVICE = ()"
    shipped = jetson.exec("cat", TOOLKIT_VERSION)
    board.set_toolkit(jetson, "1.19.0")  # the first release that refuses any id
    jetson.exec("cp", RUNTIME_EDITOR, f"{RUNTIME_EDITOR}.whole")
    try:
        jetson.exec("sed", "-i", f"s/^EVERY_DEVICE = .*/{none}/", RUNTIME_EDITOR)
        jetson.exec("grep", "--line-regexp", none, RUNTIME_EDITOR)
        yield
    finally:
        jetson.exec("mv", f"{RUNTIME_EDITOR}.whole", RUNTIME_EDITOR)
        board.set_toolkit(jetson, shipped)


# Other faults: tests/unit/roles/test_gpu_verify.py.
def test_broken_board_fails_the_right_check_with_its_fix(jetson: Board, cluster: Cluster) -> None:
    failing, reason, fix = "device-query", "unsupported device id", "nvidia-container-toolkit"
    with refusing_toolkit(jetson):
        verified = verify("jetson_k3s_timeout=60")
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
    jetson: Board, cluster: Cluster
) -> None:
    cluster.kubectl("create", "namespace", f"gpu-verify-{NAME}")
    containers = ("docker", "ps", "--all", "--quiet", "--no-trunc")
    before = jetson.exec(*containers).split()
    verified = verify("gpu_verify_mode=undisturbed")
    # Old ones may go: the kubelet clears up after ended pods when it comes to it.
    assert set(jetson.exec(*containers).split()) <= set(before)
    assert (verified.report["ok"], verified.report["mode"]) == (True, "undisturbed")
    skipped = {name for name, status in verified.statuses().items() if status == "skipped"}
    assert skipped == {
        "device-query", "cuda-kernel", "non-root", "uninvited", "concurrency", "unified-memory",
        "kubelet-restart", "reboot",
    }  # fmt: skip
    assert verified.check("concurrency")["reason"] == "mode undisturbed starts no pod"
    assert nothing_is_left(cluster)


# From here on the GPU is shared.
def test_gpu_shared_by_site_yml_is_used_by_all_its_replicas_together_and_over_a_kubelet_restart(
    jetson: Board, cluster: Cluster, tmp_path: Path
) -> None:
    show = ("systemctl", "show", "--property=MainPID", "k3s")
    before = jetson.exec(*show)
    settings = tmp_path / "sharing.yml"
    settings.write_text(yaml.safe_dump({"gpu_device_plugin_config": SHARED, "gpu_verify_mode": "full"}))
    verified = verify(f"@{settings}", playbook="site.yml")
    assert verified.run.returncode == 0, verified.run.output
    assert verified.report["gpu"]["replicas"] == REPLICAS
    assert "concurrency" not in verified.statuses()
    # site.yml reboots no board.
    assert verified.statuses() == dict.fromkeys(verified.statuses(), "passed") | {"reboot": "skipped"}
    told = [event["event"] for event in verified.check("time-slicing")["events"]]
    pending = next(place for place, text in enumerate(told) if text.startswith("pod5 Pending"))
    assert {f"pod{number} Running" for number in range(1, REPLICAS + 1)} <= set(told[:pending])
    assert jetson.exec(*show) != before
    told = [event["event"] for event in verified.check("kubelet-restart")["events"]]
    assert told.index("holder Running") < told.index("the kubelet was restarted")
    assert nothing_is_left(cluster)


def laboratory(directory: Path) -> Path:
    """What the administrator of a CI system's runner provides, and K3s' release page as a directory."""
    bundle = inventory.bundle_path(LAB)
    version = write_release(bundle, directory / "releases")
    (directory / "inventory" / "group_vars").mkdir(parents=True)
    (directory / "inventory" / "boards.ini").write_text((lab_dir(LAB) / "inventory.ini").read_text())
    settings = {
        "__bundle_arch": "amd64",
        "k3s_version": version,
        "k3s_release_url": (directory / "releases").as_uri(),
    }
    (directory / "inventory" / "group_vars" / "all.yml").write_text(yaml.safe_dump(settings))
    return directory


def test_a_dead_gpu_fails_the_job_of_a_ci_system_and_the_board_is_reset(
    jetson: Board, cluster: Cluster, tmp_path: Path
) -> None:
    board.set_state(jetson, "dead")
    wait_until(lambda: cluster.allocatable()[NAME] == 0, "the dead GPU is taken off the node", 60)
    job = yaml.safe_load((CHECKOUT / "docs/ci/gitlab-ci.yml").read_text())["verify-boards"]
    place = {"LAB": str(laboratory(tmp_path)), "BOARD": NAME}
    shutil.copytree(reports_dir(LAB), tmp_path / "reports" / NAME)
    ended = run_here("/bin/bash", "-e", "-c", "\n".join(job["script"]), **place)
    assert ended.returncode == 1, ended.stdout
    made = yaml.safe_load((tmp_path / "bundles" / NAME / "bundle.yml").read_text())
    assert made["plugin_image"] == plugin.reference()
    statuses, junit, page = published(tmp_path / "reports" / NAME)
    assert [name for name, status in statuses.items() if status == "failed"] == ["allocatable"]
    (failure,) = junit.iter("failure")
    for text in (ended.stdout, failure.text or "", page):
        assert "the GPU could not be switched on" in text
        assert "needs a reboot of the board" in text
    assert "allocatable: passed → failed" in page
    with pytest.raises(ToolError):
        jetson.exec("k3s", "--version")


def test_bundle_with_packages_makes_a_node_of_a_board_without_docker(jetson: Board, tmp_path: Path) -> None:
    board.set_state(jetson, "ready")
    given = laboratory(tmp_path) / "inventory"
    bundle = f"--extra-vars=jetson_k3s_bundle={tmp_path / 'made'}"
    settings = {
        "bundle_plugin_archive": str(inventory.bundle_path(LAB) / "tegra-device-plugin-amd64.tar.gz"),
        "bundle_debs_from": NAME,
        "bundle_debs_keyrings": [debian.KEYRING],
        "bundle_controller_wheels": False,
        "__nvidia_docker_runtime_packages": [],  # Debian has none
    }
    run_playbook(LAB, "bundle.yml", bundle, f"--extra-vars={json.dumps(settings)}", inventory=given).checked()
    jetson.exec("dpkg", "--purge", *DOCKER)
    site = partial(run_playbook, LAB, "site.yml", bundle, inventory=given)
    site("--check").checked()
    site().checked()
    assert Cluster([jetson]).allocatable() == {NAME: 1}
    status = jetson.exec("dpkg-query", "--show", "--showformat=${db:Status-Status} ", *DOCKER)
    assert status.split() == ["installed"] * len(DOCKER)
    assert jetson.exec("find", "/var/lib/jetson-k3s", "-name", "uploads") == ""
    site("--skip-tags=gpu_verify").unchanged()
