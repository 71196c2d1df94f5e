# SPDX-License-Identifier: Apache-2.0
"""The real K3s with its own containerd, compiled from its own sources.

The tests are one story, in the order of the file, on a server and an agent.
"""

import json
from collections.abc import Iterator

import pytest

from images.arm64 import build as plugin
from tests.acceptance import network, real_k3s
from tests.acceptance.cluster import Cluster, wait_until
from tests.acceptance.containerd import CONTAINERD
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site_link import REGISTRY_PACKAGES
from tests.lab import debian, workloads
from tests.lab.board import Board
from tests.lab.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.fleet]

LAB = "k3s-containerd"
# A name that nothing resolves: only K3s' registries.yaml says where its images are.
SITE = "registry.site.example"
IMAGE = f"{SITE}/tools:1"
SETTINGS = "version: 0.1\nstorage: {filesystem: {rootdirectory: /var/lib/site}}\nhttp: {addr: ':5000'}\n"
MIRROR = {"mirrors": {SITE: {"endpoint": ["http://jetson-2:5000"]}}}


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """Bare boards, and a bundle with that K3s."""
    with real_k3s.fresh(LAB, ("agxorin-jp6", "orinnano-jp6")) as up:
        yield up


def site(*arguments: str) -> PlaybookRun:
    """Run site.yml for containerd."""
    return run_playbook(LAB, "site.yml", CONTAINERD, *arguments)


def test_one_run_serves_and_proves_the_gpus(boards: list[Board]) -> None:
    run = site()
    assert run.returncode == 0, run.why
    cluster = Cluster(boards)
    assert cluster.allocatable() == {each.name: 1 for each in boards}
    for node in json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]:
        info = node["status"]["nodeInfo"]
        assert info["kubeletVersion"] == real_k3s.VERSION
        assert info["containerRuntimeVersion"].startswith("containerd://1.7.")
    assert "nvidia" in boards[0].exec("cat", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")


def test_pods_of_two_boards_talk_to_each_other_and_by_a_service(boards: list[Board]) -> None:
    network.check(Cluster(boards), plugin.reference())


def test_a_second_run_changes_nothing(boards: list[Board]) -> None:
    again = site()
    assert again.returncode == 0, again.why
    assert {name: recap.changed for name, recap in again.recap.items()} == {each.name: 0 for each in boards}


def test_images_come_from_the_registry_that_the_inventory_names(boards: list[Board]) -> None:
    serve(boards[1])
    cluster = Cluster(boards)
    run = site("--skip-tags=gpu_verify", f"--extra-vars={json.dumps({'k3s_registries': MIRROR})}")
    assert run.returncode == 0, run.why
    cluster.kubectl("run", "pulled", f"--image={IMAGE}", "--image-pull-policy=Always", "--", "sleep", "600")
    try:
        wait_until(lambda: cluster.phase("pulled") == "Running", "a pod whose image was pulled", 60)
    finally:
        cluster.kubectl("delete", "pod", "pulled", "--grace-period=1")


def serve(board: Board) -> None:
    """Make a board a registry, Debian's, that has the image."""
    for deb in sorted(debian.package_files(*REGISTRY_PACKAGES).glob("*.deb")):
        docker("cp", str(deb), f"{board.container}:/var/tmp/")
    board.exec("sh", "-c", "dpkg --install /var/tmp/*.deb; systemctl stop docker-registry")
    board.exec("install", "--directory", "--owner=docker-registry", "/var/lib/site")
    board.exec("sh", "-c", f"printf %b {SETTINGS!r} > /etc/docker/registry/config.yml")
    board.exec("systemctl", "start", "docker-registry")
    listening = ("curl", "--silent", "--fail", "http://localhost:5000/v2/")
    wait_until(lambda: board.exec(*listening, check=False) != "", "the registry", 30)
    docker("cp", str(workloads.device_query_archive()), f"{board.container}:/var/tmp/tools.tar.gz")
    there = "localhost:5000/tools:1"
    board.exec("docker", "load", "--quiet", "--input=/var/tmp/tools.tar.gz")
    board.exec("docker", "tag", workloads.device_query_image(), there)
    board.exec("docker", "push", "--quiet", there)
