# SPDX-License-Identifier: Apache-2.0
"""The real K3s with Docker, compiled from its own sources: the main path, and an upgrade.

The tests are one story, in the order of the file, on a server and an agent.
"""

import json
from collections.abc import Iterator

import pytest

from images.arm64 import build as plugin
from tests.acceptance import network, real_k3s
from tests.acceptance.cluster import Cluster
from tests.acceptance.playbook import reports_dir, run_playbook
from tests.lab import bundle, inventory
from tests.lab.board import Board

pytestmark = [pytest.mark.lab, pytest.mark.fleet]

LAB = "k3s"
OLDER, NEWER = "v1.25.2+k3s-934d0136", "v1.25.4+k3s1"


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """Bare boards, and a bundle with the older K3s."""
    with real_k3s.fresh(LAB, ("agxorin-jp6", "orinnano-jp6"), OLDER) as up:
        yield up


def nodes(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """The kubelet's version and the container runtime's, by node."""
    found = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    described = {node["metadata"]["name"]: node["status"]["nodeInfo"] for node in found}
    return {
        name: (info["kubeletVersion"], info["containerRuntimeVersion"]) for name, info in described.items()
    }


def test_one_run_serves_and_proves_the_gpus(boards: list[Board]) -> None:
    run = run_playbook(LAB, "site.yml")
    assert run.returncode == 0, run.why
    cluster = Cluster(boards)
    assert cluster.allocatable() == {each.name: 1 for each in boards}
    said = boards[0].exec("k3s", "--version")
    assert said.startswith(f"k3s version {OLDER} (934d0136)")
    for version, runtime in nodes(cluster).values():
        assert (version, runtime.partition("://")[0]) == (OLDER, "docker")


def test_the_report_says_that_the_boards_are_virtual(boards: list[Board]) -> None:
    for each in boards:
        report = json.loads((reports_dir(LAB) / f"{each.name}.json").read_text())
        assert (report["software"]["k3s"], report["simulated"]) == (OLDER, True)


def test_pods_of_two_boards_talk_to_each_other_and_by_a_service(boards: list[Board]) -> None:
    network.check(Cluster(boards), plugin.reference())


def test_a_second_run_changes_nothing(boards: list[Board]) -> None:
    again = run_playbook(LAB, "site.yml")
    assert again.returncode == 0, again.why
    assert {name: recap.changed for name, recap in again.recap.items()} == {each.name: 0 for each in boards}


def test_an_upgrade_brings_the_newer_one_and_the_jobs_go_on(boards: list[Board]) -> None:
    cluster = Cluster(boards)
    cluster.create_jobs()
    newer = inventory.bundle_path(LAB).with_name("newer")
    bundle.write(newer, kubernetes=NEWER)
    run = run_playbook(LAB, "upgrade.yml", f"--extra-vars=jetson_k3s_bundle={newer}")
    assert run.returncode == 0, run.why
    assert {version for version, _ in nodes(cluster).values()} == {NEWER}
    assert cluster.allocatable() == {each.name: 1 for each in boards}
    cluster.kubectl("rollout", "status", "deployment/jobs", "--timeout=60s")
