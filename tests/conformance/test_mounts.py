# SPDX-License-Identifier: Apache-2.0
"""Directories of the host that are deleted under a container's mount: it never sees a new one."""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import boards
from tests.conformance.conftest import BOARD
from tests.conformance.dra_node import DraNode
from tests.conformance.plugin import DEFAULT_COMMAND, Node, running

DRIVER = "plugins/gpu.jetson-k3s.github.io"


def mounting(mounts: Mapping[Path, Path]) -> str:
    """Give the start of a command line that runs a command with these mounts, by source."""
    for directory in (*mounts.keys(), *mounts.values()):
        directory.mkdir(parents=True, exist_ok=True)
    binds = [f"mount --bind {source} {target}" for source, target in mounts.items()]
    script = " && ".join([*binds, 'exec "$@"'])
    return f"unshare --user --map-root-user --mount sh -c {shlex.quote(script)} sh"


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
        await plugin.says("waiting for the kubelet")
        shutil.rmtree(tmp_path / "sources" / lost)
        (tmp_path / "sources" / lost).mkdir()
        assert await plugin.ended() == 1
        says = f"{targets.get(lost, kubelet / lost)} was deleted on the host, and this container still mounts"
        assert says in plugin.log.read_text()


@pytest.mark.parametrize("lost", ["limit", "cdi", "device-plugins", "plugins_registry", DRIVER])
async def test_dra_driver_ends_so_that_its_container_mounts_the_new_directory(
    lost: str, node: DraNode, tmp_path: Path
) -> None:
    targets = {"limit": node.files.limit, "cdi": node.root / "run/cdi"}
    places = ("limit", "cdi", "device-plugins", "plugins_registry", DRIVER)
    kubelet = node.kubelet.directory
    mounts = {tmp_path / name: targets.get(name, kubelet / name) for name in places}
    async with node.start(
        sharing="dra: {mode: capacity, memoryTotal: 6Gi}", before=mounting(mounts)
    ) as driver:
        await driver.says("the GPU is healthy")
        await driver.says("serving at")
        shutil.rmtree(tmp_path / lost)
        (tmp_path / lost).mkdir()
        assert await driver.ended() == 1
        says = f"{targets.get(lost, kubelet / lost)} was deleted on the host, and this container still mounts"
        assert says in driver.log.read_text()
