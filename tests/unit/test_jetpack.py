# SPDX-License-Identifier: Apache-2.0
"""Plugin and roles say the same JetPack: the same releases, and one rule for what is not among them."""

from pathlib import Path

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_board as board
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import jetson_releases as releases
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release
from tegra_device_plugin.board import catalogue

from tests.unit.roles.playing import play_text

# L4T release, its JetPack, and the listed release that says so.
LISTED = [(release, jetpack, release) for release, jetpack in catalogue.load().jetpack.items()]
NOT_LISTED = [
    ("36.4", "6.1", "36.4.0"),  # as NVIDIA writes a release that ends in 0
    # A fourth part changes nothing.
    ("35.6.4.1", "5.1.6", "35.6.4"),
    # Another patch: the series is certain.
    ("36.4.1", "6.1", "36.4.0"),
    ("36.4.99", "6.2", "36.4.7"),
    # Another minor release: only the generation is.
    ("36.1.0", "6", "36.0.0"),
    ("39.1.0", "7", "39.0.0"),
]
UNKNOWN = ["28.2.1", "33.0.0", "35.0.9", "38.1.9", "40.0.0"]


def test_the_roles_list_is_a_copy_of_the_plugins_catalogue() -> None:
    listed = {catalogue.version(release): jetpack for release, jetpack in catalogue.load().jetpack.items()}
    assert listed == releases.JETPACK


@pytest.mark.parametrize(("release", "jetpack", "nearest"), LISTED + NOT_LISTED)
def test_jetpack_is_as_exact_as_it_is_certain(release: str, jetpack: str, nearest: str) -> None:
    assert catalogue.jetpack(release) == (jetpack, nearest)
    assert board.jetpack_release(release) == jetpack


@pytest.mark.parametrize("release", UNKNOWN)
def test_no_jetpack_is_guessed_from_another_line_or_a_later_release(release: str) -> None:
    assert catalogue.jetpack(release) is None
    assert board.jetpack_release(release) is None


@pytest.mark.parametrize("jetpack", sorted({jetpack for _, jetpack, _ in LISTED + NOT_LISTED}))
def test_packages_of_the_bundle_are_chosen_by_the_generation(jetpack: str) -> None:
    found = board_release.packages_archive({"jetpack": jetpack, "arch": "aarch64"})
    assert found == f"debs-jetpack{jetpack[0]}-arm64.tar"


def test_jetpack_of_a_hostile_board_becomes_no_path(tmp_path: Path) -> None:
    text = """\
- hosts: server
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {jetson: {arch: aarch64, jetpack: 6-/x, l4t: y}, cacheable: true}
    - ansible.builtin.import_role: {name: jetson_k3s.cluster.nvidia_docker, tasks_from: collect}
"""
    run = play_text(tmp_path, text, fails=True, variables={"__nvidia_docker_collected": str(tmp_path)})
    assert "the board has no JetPack (L4T y)" in run.said
