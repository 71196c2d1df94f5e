# SPDX-License-Identifier: Apache-2.0
"""Pods run by containerd, Debian's, under K3s: the other way to run it.

The two boards are as flashed: they have one hostname, and LTE is their first way out.
"""

import json

import pytest

from images.arm64 import build as plugin
from tests.acceptance.cluster import RESOURCE, Cluster, check_network, wait_until
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import REGISTRY_PACKAGES
from tests.lab import board, inventory, k3s, workloads
from tests.lab.board import Board
from tools import debian
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "containerd"
CONTAINERD = "--extra-vars=k3s_container_runtime=containerd jetson_set_hostname=true"
# Docker mounts both files into a board's container, where nothing could be moved onto them.
AS_FLASHED = r"""
for file in /etc/hosts /etc/hostname; do cp $file /tmp/kept; umount $file; cp /tmp/kept $file; done
echo '127.0.1.1 ubuntu' >> /etc/hosts
hostnamectl set-hostname ubuntu
"""
LTE = """
ip link add wwan0 type veth peer name modem0
ip address add 100.64.7.{number}/24 dev wwan0
ip link set wwan0 up
ip link set modem0 up
ip route add default via 100.64.7.1 metric 1
"""
STRICT = "--extra-vars=nvidia_docker_strict=true"
# A name that nothing resolves: only K3s' registries.yaml says where its images are.
SITE = "registry.site.example"
IMAGE = f"{SITE}/pause:1"
SETTINGS = "version: 0.1\nstorage: {filesystem: {rootdirectory: /var/lib/site}}\nhttp: {addr: ':5000'}\n"
MIRROR = {"mirrors": {SITE: {"endpoint": ["http://jetson-2:5000"]}}}


@pytest.fixture
def one(boards: list[Board]) -> Board:
    return boards[0]


def site(*arguments: str) -> PlaybookRun:
    return run_playbook(LAB, "site.yml", CONTAINERD, *arguments)


def test_one_run_serves_and_proves_the_gpus(boards: list[Board]) -> None:
    for number, each in enumerate(boards, 2):
        each.exec("sh", "-ec", AS_FLASHED + LTE.format(number=number))
    # As a run leaves it that ends before the hostname is set.
    boards[1].exec("sed", "-i", f"s/^127.0.1.1 ubuntu/127.0.1.1 {boards[1].name} /", "/etc/hosts")
    # Mode full restarts the kubelet, too.
    site("--extra-vars=gpu_verify_mode=full").checked()
    assert Cluster(boards).allocatable() == {each.name: 1 for each in boards}


def test_nodes_have_the_names_of_the_inventory_and_the_addresses_of_the_site(boards: list[Board]) -> None:
    found = {
        node["metadata"]["name"]: [
            entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP"
        ]
        for node in Cluster(boards).nodes()
    }
    assert found == {one.name: [one.address] for one in boards}
    for one in boards:
        assert one.exec("hostnamectl", "--static").strip() == one.name
        assert one.exec("sed", "-n", "s/^127.0.1.1//p", "/etc/hosts").split() == [one.name]


def test_the_pods_are_containerds_and_the_gpu_is_by_the_runtime_class(one: Board) -> None:
    cluster = Cluster([one])
    node = cluster.get("node", one.name)["status"]["nodeInfo"]
    assert node["containerRuntimeVersion"].startswith("containerd://1.6.")
    assert node["kubeletVersion"] == k3s.VERSION
    # The instance of the plugin that stands by, and no pod.
    assert one.exec("docker", "ps", "--format={{.Names}}").split() == ["tegra-device-plugin"]
    assert "nvidia" in cluster.kubectl("get", "runtimeclass", "--output=name")


def test_pods_of_two_boards_talk_to_each_other_and_by_a_service(boards: list[Board]) -> None:
    check_network(Cluster(boards), plugin.reference())


def test_a_second_run_changes_nothing() -> None:
    site().unchanged()


def test_strict_mode_keeps_the_gpu_from_a_pod_that_has_not_asked(one: Board, boards: list[Board]) -> None:
    for each in boards:
        board.set_toolkit(each, "1.18.0")
    run = site(STRICT).checked()
    assert "uninvited passed" in " ".join(run.output.split())
    assert "= false  # jetson-k3s: strict" in one.exec("cat", "/etc/nvidia-container-runtime/config.toml")
    assert not one.exec("cat", "/etc/docker/daemon.json", check=False), "Docker is left as it is"


def test_the_gpu_is_there_again_after_a_reboot(one: Board) -> None:
    cluster = Cluster([one])
    before = plugin_container(cluster, one)
    board.reboot(one)
    wait_until(lambda: plugin_container(cluster, one) != before, "another container of the plugin", 120)
    wait_until(lambda: all(cluster.allocatable().values()), f"{RESOURCE} after a reboot", 60)


def plugin_container(cluster: Cluster, one: Board) -> str:
    query = "--output=jsonpath={.status.containerStatuses[0].containerID}"
    return cluster.kubectl("--namespace=kube-system", "get", "pod", str(cluster.plugin_pod(one.name)), query)


def test_images_come_from_the_registry_that_the_inventory_names(boards: list[Board]) -> None:
    serve(boards[1])
    cluster = Cluster(boards)
    site("--skip-tags=gpu_verify", STRICT, f"--extra-vars={json.dumps({'k3s_registries': MIRROR})}").checked()
    cluster.kubectl("run", "pulled", f"--image={IMAGE}", "--image-pull-policy=Always")
    try:
        wait_until(lambda: cluster.phase("pulled") == "Running", "a pod whose image was pulled", 60)
    finally:
        cluster.kubectl("delete", "pod", "pulled", "--grace-period=1")


def test_plugins_image_comes_from_that_registry_too(boards: list[Board]) -> None:
    archive = inventory.bundle_path(LAB) / f"tegra-device-plugin-{workloads.DEFAULT_ARCH}.tar.gz"
    there = "localhost:5000/tegra-device-plugin:1"
    docker("cp", str(archive), f"{boards[1].container}:/var/tmp/")
    boards[1].exec("docker", "load", "--quiet", f"--input=/var/tmp/{archive.name}")
    boards[1].exec("docker", "tag", plugin.reference(), there)
    boards[1].exec("docker", "push", "--quiet", there)
    digest = boards[1].exec("docker", "image", "inspect", "--format={{index .RepoDigests 0}}", there)
    image = f"{SITE}/tegra-device-plugin:1@{digest.strip().partition('@')[2]}"
    settings = {"k3s_registries": MIRROR, "gpu_device_plugin_image": image}
    arguments = (STRICT, f"--extra-vars={json.dumps(settings)}")
    site(*arguments).checked()
    assert Cluster(boards).plugin_image() == image
    site(*arguments, "--skip-tags=gpu_verify").unchanged()


def serve(board: Board) -> None:
    for deb in sorted(debian.package_files(*REGISTRY_PACKAGES).glob("*.deb")):
        docker("cp", str(deb), f"{board.container}:/var/tmp/")
    board.exec("sh", "-c", "dpkg --install /var/tmp/*.deb; systemctl stop docker-registry")
    board.exec("install", "--directory", "--owner=docker-registry", "/var/lib/site")
    board.exec("sh", "-c", f"printf %b {SETTINGS!r} > /etc/docker/registry/config.yml")
    board.exec("systemctl", "start", "docker-registry")
    listening = ("curl", "--silent", "--fail", "http://localhost:5000/v2/")
    wait_until(lambda: board.exec(*listening, check=False) != "", "the registry", 30)
    docker("cp", str(workloads.pause_archive()), f"{board.container}:/var/tmp/pause.tar.gz")
    there = "localhost:5000/pause:1"
    board.exec("docker", "load", "--quiet", "--input=/var/tmp/pause.tar.gz")
    board.exec("docker", "tag", workloads.PAUSE_IMAGE, there)
    board.exec("docker", "push", "--quiet", there)
