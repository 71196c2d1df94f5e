# SPDX-License-Identifier: Apache-2.0
"""Docker with the containerd image store, which Docker 29 has from the beginning: ids are those of manifests.

No package archive has Docker 29. So this is the newest docker.io of Debian (28.5 in 2026), with the store on.
The tests are one story, in the order of the file, on a server and an agent.
"""

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.cluster import RESOURCE, Cluster
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.acceptance.site import bring_plugin, bring_registry
from tests.lab import lab, workloads
from tests.lab.board import Board
from tools import debian
from tools.engine import docker

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "store"
SUPPLIED = "--extra-vars=image_supply_host=jetson-2"
SUITE = "testing"
PACKAGES = ("containerd", "docker-cli", "docker.io", "tini-static")
INSTALL = """
apt-get --yes --option=Dir::Etc::SourceList=/dev/null --option=Dir::Etc::SourceParts=/dev/null \\
    --option=Dpkg::Options::=--force-confold install /debs/*.deb
# Overlays do not nest, so containerd's images are on the board's volume.
mkdir --parents /etc/containerd
printf 'version = 2\\nroot = "/var/lib/docker/of-containerd"\\n' > /etc/containerd/config.toml
systemctl restart containerd docker
"""
STORE = {"features": {"containerd-snapshotter": True}}


def install_newest_docker(one: Board) -> None:
    """Install Debian's newest Docker with the containerd image store on a board, as its owner would."""
    docker("cp", f"{debian.package_files(*PACKAGES, suite=SUITE)}/.", f"{one.container}:/debs")
    one.exec("sh", "-c", f"echo '{json.dumps(STORE)}' > /etc/docker/daemon.json")
    one.exec("env", "DEBIAN_FRONTEND=noninteractive", "sh", "-ec", INSTALL, timeout=300)


@pytest.fixture(scope="module")
def boards() -> Iterator[list[Board]]:
    """Two boards, and a bundle with Debian's registry."""
    with lab.fresh(LAB, ["agxorin-jp6", "orinnano-jp6"]) as up:
        bring_registry(LAB, jetpack=6)
        for one in up:
            install_newest_docker(one)
        yield up


def site(*arguments: str) -> PlaybookRun:
    """Run site.yml up to the plugin."""
    return run_playbook(LAB, "site.yml", "--skip-tags=gpu_verify", *arguments)


def test_a_second_run_changes_nothing(boards: list[Board]) -> None:
    for one in boards:
        assert int(one.exec("docker", "info", "--format={{.ServerVersion}}").split(".")[0]) >= 28
        assert "io.containerd.snapshotter" in one.exec("docker", "info", "--format={{.DriverStatus}}")
    site().checked()
    assert Cluster(boards).allocatable(RESOURCE) == {one.name: 1 for one in boards}
    site().unchanged()


def test_images_of_the_sites_registry_are_known_again(boards: list[Board]) -> None:
    plugin = bring_plugin(LAB, "supplied")
    assert "did not supply" not in site(SUPPLIED).checked().output
    assert all(one.exec("docker", "image", "ls", "--quiet", plugin.name) for one in boards)
    site(SUPPLIED).unchanged()


def test_another_image_of_the_same_name_is_replaced(boards: list[Board]) -> None:
    name = workloads.PAUSE_IMAGE
    before = boards[1].exec("docker", "image", "inspect", "--format={{.Id}}", name)
    boards[1].exec("sh", "-c", f"tar --create --files-from=/dev/null | docker import - {name}")
    site().checked()
    assert boards[1].exec("docker", "image", "inspect", "--format={{.Id}}", name) == before
