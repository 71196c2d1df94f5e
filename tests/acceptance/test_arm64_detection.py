# SPDX-License-Identifier: Apache-2.0
"""Emulated boards that become no node: each is known by the device tree that its kernel has read.

They are tried beside the board of test_arm64.py, which does not keep both processors busy all the time.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.board.detection import detect

from images.arm64 import build as plugin
from tests import boards
from tests.acceptance.command import run_here
from tests.acceptance.emulated import NAME, emulated, the_kernel_knows_the_board
from tests.lab import inventory
from tests.lab.paths import lab_dir
from tests.lab.vm.machine import Machine
from tools.cache import CHECKOUT

pytestmark = [pytest.mark.lab, pytest.mark.arm64]

LAB = "arm64-detect"
# The oldest JetPack that boots with UEFI, and a board whose GPU is on PCI: no GPU node in the device tree.
TYPES = ("xaviernx-jp5", "thor5000-jp70")


def facts_of_ansible(name: str, directory: Path) -> Any:
    """What the role jetson_facts gathers on the board."""
    said = run_here(
        str(Path(sys.executable).with_name("ansible")),
        f"--inventory={lab_dir(name) / 'inventory.ini'}",
        "--become",
        "--module-name=jetson_facts",
        "--args=asked=0",
        f"--tree={directory}",
        "k3s_cluster",
        ANSIBLE_LIBRARY=str(CHECKOUT / "roles/jetson_facts/library"),
        ANSIBLE_MODULE_UTILS=":".join(map(str, CHECKOUT.glob("roles/*/module_utils"))),
    )
    assert said.returncode == 0, said.stdout
    return json.loads((directory / NAME).read_text())["ansible_facts"]["jetson"]


def facts_of_the_plugin(board: Machine) -> Any:
    """What the plugin's arm64 image detects on the board, without the runtime's or the kubelet's help."""
    board.load_image(inventory.bundle_path(board.lab) / "tegra-device-plugin-arm64.tar.gz")
    mounts = [f"--volume={path}:/host{path}:ro" for path in ("/sys", "/dev", "/etc/nv_tegra_release")]
    restricted = ("--rm", "--read-only", "--cap-drop=ALL", "--network=none")
    detect = ("detect", "--host-root=/host", "--output=json")
    return json.loads(board.exec("docker", "run", *restricted, *mounts, plugin.reference(), *detect))


@pytest.mark.parametrize("kind", TYPES)
def test_board_is_known_by_the_device_tree_that_its_kernel_has_read(kind: str, tmp_path: Path) -> None:
    fixture = boards.load()[kind]
    boards.build(fixture, tmp_path / "board")
    expected = detect(tmp_path / "board").as_dict()
    with emulated(LAB, kind) as one:
        the_kernel_knows_the_board(one)
        found = facts_of_the_plugin(one)
        gathered = facts_of_ansible(one.lab, tmp_path / "facts")
    for key in ("platform", "soc", "l4t", "jetpack", "module", "model"):
        assert found[key] == expected[key], key
    for key in ("chip", "compute_capability", "state", "sysfs", "device_nodes"):
        assert found["gpu"][key] == json.loads(json.dumps(expected["gpu"][key])), key
    assert (gathered["arch"], gathered["soc"], gathered["l4t"]) == ("aarch64", fixture.soc, fixture.l4t)
    assert gathered["jetpack"] == fixture.jetpack
