# SPDX-License-Identifier: Apache-2.0
"""Directories of the host that are deleted under a container's mount: it never sees a new one."""

import shutil
from pathlib import Path

import pytest

from tests import boards
from tests.conformance.conftest import BOARD
from tests.conformance.dra_node import DraNode
from tests.conformance.fake_kubelet import FakeKubelet
from tests.conformance.plugin import DEFAULT_COMMAND, Node, mounting, running

DRIVER = "plugins/gpu.jetson-k3s.github.io"


@pytest.mark.parametrize("lost", ["limit", "cdi", "device-plugins", "pod-resources", DRIVER])
async def test_plugin_ends_so_that_its_container_mounts_the_new_directory(
    lost: str, directory: Path, tmp_path: Path
) -> None:
    root, node, kubelet = tmp_path / "host", Node(tmp_path), directory.parent
    boards.build(boards.load()[BOARD], root)
    boards.write_run(root)
    node.share("units: {memoryTotal: 6Gi}")
    targets = {"limit": node.limit, "cdi": root / "run/cdi"}
    places = ("limit", "cdi", "device-plugins", "pod-resources", DRIVER)
    mounts = {tmp_path / "sources" / name: targets.get(name, kubelet / name) for name in places}
    command = f"{mounting(mounts)} {DEFAULT_COMMAND}"
    more = (*node.arguments, "--device-list-strategy=envvar,cdi-cri")
    async with running(command, root, directory, *more) as plugin:
        await plugin.until_logged("waiting for the kubelet")
        shutil.rmtree(tmp_path / "sources" / lost)
        (tmp_path / "sources" / lost).mkdir()
        assert await plugin.ended() == 1
        message = (
            f"{targets.get(lost, kubelet / lost)} was deleted on the host, and this container still mounts"
        )
        assert message in plugin.log.read_text()


@pytest.mark.parametrize("lost", ["limit", "cdi", "nvpmodel", "device-plugins", "plugins_registry", DRIVER])
async def test_dra_driver_ends_so_that_its_container_mounts_the_new_directory(
    lost: str, node: DraNode, tmp_path: Path
) -> None:
    targets = {
        "limit": node.files.limit,
        "cdi": node.root / "run/cdi",
        "nvpmodel": node.root / "var/lib/nvpmodel",
    }
    places = (*targets, "device-plugins", "plugins_registry", DRIVER)
    kubelet = node.kubelet.directory
    mounts = {tmp_path / name: targets.get(name, kubelet / name) for name in places}
    async with node.start(
        sharing="dra: {mode: capacity, memoryTotal: 6Gi}", before=mounting(mounts)
    ) as driver:
        await driver.until_logged("the GPU is healthy")
        await driver.until_logged("serving at")
        shutil.rmtree(tmp_path / lost)
        (tmp_path / lost).mkdir()
        assert await driver.ended() == 1
        message = (
            f"{targets.get(lost, kubelet / lost)} was deleted on the host, and this container still mounts"
        )
        assert message in driver.log.read_text()


@pytest.mark.parametrize("generation", ["1.37"])
async def test_entries_of_nvidias_lists_that_the_pod_cannot_see_are_named(
    kubelet: FakeKubelet, directory: Path, tmp_path: Path
) -> None:
    board, seen = tmp_path / "board", tmp_path / "seen"
    boards.build(boards.load()[BOARD], board)
    boards.write_run(board)
    lists = board / "etc/nvidia-container-runtime/host-files-for-container.d"
    (lists / "zz.csv").write_text("sym, /etc/vulkan/icd.d/nvidia_icd.json\nlib, /usr/lib/absent.so\n")
    (seen / "etc").mkdir(parents=True)
    (seen / "etc/nv_tegra_release").write_bytes((board / "etc/nv_tegra_release").read_bytes())
    names = ("sys", "dev", "usr", "lib", "etc/nvidia-container-runtime")
    mounts = {board / name: seen / name for name in names} | {board / "run/cdi": seen / "var/run/cdi"}
    command = f"{mounting(mounts)} {DEFAULT_COMMAND}"
    async with running(command, seen, directory, "--device-list-strategy=cdi-cri") as plugin:
        await kubelet.until_allocatable()
        await plugin.until_logged(
            "the CDI spec lacks entries of NVIDIA's lists that are not mounted here: "
            "/etc/vulkan/icd.d/nvidia_icd.json: mount their directories below "
        )
        assert "absent.so" not in plugin.log.read_text()
        assert (board / "run/cdi/tegra-device-plugin.json").is_file()
    async with running(DEFAULT_COMMAND, board, directory, "--device-list-strategy=cdi-cri") as plugin:
        await kubelet.until_allocatable()
        assert "lacks entries" not in plugin.log.read_text()
