# SPDX-License-Identifier: Apache-2.0
"""playbooks/hil.py and a CI system's job on a virtual board; the Job that looks from inside a cluster."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from images.arm64 import build as plugin
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.command import run_here
from tests.acceptance.playbook import reports_dir
from tests.lab import board, inventory, lab
from tests.lab.board import Board
from tests.lab.bundle import checksums
from tests.lab.paths import lab_dir
from tests.reports.schema import validate
from tools.cache import CHECKOUT
from tools.engine import docker
from tools.process import ToolError

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "hil"
VERIFY = CHECKOUT / "plugin" / "deploy" / "verify"


@pytest.fixture(scope="module")
def jetson() -> Iterator[Board]:
    with lab.fresh(LAB, ["agxorin-jp6"]) as (jetson,):
        yield jetson


def ended_with(command: Sequence[str | Path], **environment: str) -> tuple[int, str]:
    """Run a command in the checkout; its exit status and output."""
    ran = run_here(*command, **environment)
    return ran.returncode, ran.stdout


def hil(*arguments: str) -> tuple[int, str]:
    """Run playbooks/hil.py on the lab; its exit status and output."""
    lab_options = (f"--inventory={lab_dir(LAB) / 'inventory.ini'}", f"--reports={reports_dir(LAB)}")
    return ended_with([sys.executable, CHECKOUT / "playbooks" / "hil.py", *lab_options, *arguments])


def published(reports: Path) -> tuple[dict[str, str], ElementTree.Element, str]:
    """What hil.py has published: each check's status, the JUnit XML and the page."""
    report = json.loads((reports / "jetson-1.json").read_text())
    validate(report)
    junit = ElementTree.fromstring((reports / "junit.xml").read_text())  # noqa: S314 - our own
    statuses = {check["id"]: check["status"] for check in report["checks"]}
    return statuses, junit, (reports / "index.html").read_text()


@pytest.fixture(scope="module")
def cluster(jetson: Board) -> Cluster:
    status, output = hil("--keep")
    assert status == 0, output
    return Cluster([jetson])


def test_a_board_that_is_well_passes_every_check(cluster: Cluster) -> None:
    statuses, junit, page = published(reports_dir(LAB))
    assert set(statuses.values()) == {"passed"}
    assert (junit.get("tests"), junit.get("failures"), junit.get("errors")) == (str(len(statuses)), "0", "0")
    assert "jetson-1 has passed" in page


def start_job(jetson: Board) -> None:
    docker("cp", f"{VERIFY}/.", f"{jetson.container}:/root/verify")
    make = "k3s kubectl kustomize /root/verify | sed s/NODE/jetson-1/ | k3s kubectl apply -f -"
    jetson.exec("sh", "-c", make)


def ended(cluster: Cluster) -> dict[str, str]:
    job = json.loads(cluster.kubectl("get", "job", "gpu-verify-jetson-1", "--output=json"))
    conditions = job["status"].get("conditions", [])
    return {one["type"]: one.get("reason", "") for one in conditions if one["status"] == "True"}


def test_the_job_proves_the_node_from_inside(jetson: Board, cluster: Cluster) -> None:
    start_job(jetson)
    wait_until(lambda: bool(ended(cluster)), "the Job ends", 120)
    said = cluster.kubectl("logs", "job/gpu-verify-jetson-1", "--container=detect")
    assert "Complete" in ended(cluster), said
    assert "state:               ready" in said
    assert "Result = PASS" in cluster.kubectl("logs", "job/gpu-verify-jetson-1", "--container=device-query")
    cluster.kubectl("delete", "job", "gpu-verify-jetson-1")


def test_the_job_fails_where_no_gpu_is(jetson: Board, cluster: Cluster) -> None:
    board.set_state(jetson, "dead")
    wait_until(lambda: cluster.allocatable()["jetson-1"] == 0, "the dead GPU is taken off the node", 60)
    start_job(jetson)
    sooner = '{"spec": {"activeDeadlineSeconds": 5}}'
    cluster.kubectl("patch", "job", "gpu-verify-jetson-1", "--patch", sooner)
    wait_until(lambda: bool(ended(cluster)), "the Job ends", 120)
    assert ended(cluster) == {"Failed": "DeadlineExceeded"}


def laboratory(directory: Path) -> Path:
    """What the administrator of a CI system's runner provides, and K3s' release page as a directory."""
    bundle = inventory.bundle_path(LAB)
    version = yaml.safe_load((bundle / "bundle.yml").read_text())["k3s_version"]
    release = directory / "releases" / version
    release.mkdir(parents=True)
    files = {"k3s-amd64": "k3s", "k3s-airgap-images-amd64.tar.gz": "k3s-airgap-images-amd64.tar.gz"}
    for source, target in files.items():
        (release / target).symlink_to(bundle / source)
    (release / "sha256sum-amd64.txt").write_text(checksums(release))
    (directory / "inventory" / "group_vars").mkdir(parents=True)
    (directory / "inventory" / "boards.ini").write_text((lab_dir(LAB) / "inventory.ini").read_text())
    settings = {
        "bundle_arch": "amd64",
        "bundle_k3s_version": version,
        "bundle_k3s_release_url": (directory / "releases").as_uri(),
    }
    (directory / "inventory" / "group_vars" / "all.yml").write_text(yaml.safe_dump(settings))
    return directory


def test_a_dead_gpu_fails_the_job_of_a_ci_system_and_the_board_is_reset(
    jetson: Board, cluster: Cluster, tmp_path: Path
) -> None:
    job = yaml.safe_load((CHECKOUT / "docs/ci/gitlab-ci.yml").read_text())["verify-boards"]
    place = {"LAB": str(laboratory(tmp_path)), "BOARD": "k3s_cluster"}
    shutil.copytree(reports_dir(LAB), tmp_path / "reports" / "k3s_cluster")
    status, output = ended_with(["/bin/bash", "-e", "-c", "\n".join(job["script"])], **place)
    assert status == 1, output
    made = yaml.safe_load((tmp_path / "bundles/k3s_cluster/bundle.yml").read_text())
    assert made["plugin_image"] == plugin.reference()
    statuses, junit, page = published(tmp_path / "reports/k3s_cluster")
    assert [name for name, status in statuses.items() if status == "failed"] == ["allocatable"]
    (failure,) = junit.iter("failure")
    for text in (output, failure.text or "", page):
        assert "the GPU could not be switched on" in text
        assert "needs a reboot of the board" in text
    assert "allocatable: passed → failed" in page
    with pytest.raises(ToolError):
        jetson.exec("k3s", "--version")
