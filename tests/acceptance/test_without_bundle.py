# SPDX-License-Identifier: Apache-2.0
"""A board with Internet and no bundle: it downloads K3s, and pulls the plugin's image by its digest."""

import json
from collections.abc import Iterator

import pytest

from images.arm64 import build as plugin
from tests.acceptance.cluster import Cluster
from tests.acceptance.internet import internet
from tests.acceptance.playbook import PlaybookRun, run_playbook
from tests.lab import inventory
from tests.lab.board import Board
from tests.lab.paths import lab_dir
from tests.lab.workloads import DEFAULT_ARCH as ARCH

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LAB = "without-bundle"
TYPES = ("orinnano-jp6",)


@pytest.fixture(scope="module")
def settings(boards: list[Board], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of this site, with the plugin's image in its registry."""
    with internet(LAB, boards[0], tmp_path_factory.mktemp("internet")) as (registry, found):
        archive = inventory.bundle_path(LAB) / f"tegra-device-plugin-{ARCH}.tar.gz"
        digest = registry.push(archive, plugin.reference(), "tegra-device-plugin:1")
        (place,) = found["nvidia_docker_daemon_config"]["insecure-registries"]
        yield {
            **found,
            "gpu_device_plugin_image": f"{place}/tegra-device-plugin:1@{digest}",
        }


def site(settings: dict[str, str], *arguments: str) -> PlaybookRun:
    path = lab_dir(LAB) / "no-bundle.ini"
    lines = (lab_dir(LAB) / "inventory.ini").read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("jetson_k3s_bundle")))
    return run_playbook(LAB, "site.yml", f"--extra-vars={json.dumps(settings)}", *arguments, inventory=path)


def test_board_becomes_a_node_with_the_image_of_the_registry(
    boards: list[Board], settings: dict[str, str]
) -> None:
    site(settings).checked()
    cluster = Cluster(boards)
    assert cluster.allocatable() == {boards[0].name: 1}
    assert cluster.plugin_image() == settings["gpu_device_plugin_image"]


def test_second_run_changes_nothing(boards: list[Board], settings: dict[str, str]) -> None:
    site(settings).unchanged()


def test_image_that_the_registry_lacks_is_named(boards: list[Board], settings: dict[str, str]) -> None:
    image = settings["gpu_device_plugin_image"].partition("@")[0] + "@sha256:" + "0" * 64
    run = site({**settings, "gpu_device_plugin_image": image}, "--tags=gpu_device_plugin")
    assert run.returncode != 0
    assert f"could not pull {image} (gpu_device_plugin_image): " in " ".join(run.output.split())
    assert Cluster(boards).allocatable() == {boards[0].name: 1}
