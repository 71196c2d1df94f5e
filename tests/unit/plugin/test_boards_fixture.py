# SPDX-License-Identifier: Apache-2.0
"""The simulated boards themselves: a wrong tree would make every other test prove nothing."""

import os
import stat
from pathlib import Path

import pytest

from tests.boards import Fixture, State, build, load
from tests.boards.userland import libcuda_facts

BOARDS = load()
every_board = pytest.mark.parametrize("fixture", BOARDS.values(), ids=BOARDS)


@every_board
@pytest.mark.parametrize("state", ["ready", "unpowered", "dead"])
def test_every_link_is_relative_and_leads_somewhere(fixture: Fixture, state: State, tmp_path: Path) -> None:
    build(fixture, tmp_path, state=state)
    links = [path for path in tmp_path.rglob("*") if path.is_symlink()]
    assert links
    assert [str(link) for link in links if link.readlink().is_absolute() or not link.exists()] == []


@every_board
def test_what_a_cuda_program_opens_exists_and_is_injected(fixture: Fixture, tmp_path: Path) -> None:
    build(fixture, tmp_path)
    facts = libcuda_facts(fixture).splitlines()
    opened = [line.removeprefix("open=/dev/") for line in facts if line.startswith("open=")]
    assert opened
    assert [name for name in opened if not (tmp_path / "dev" / name).exists()] == []
    csv = "".join(path.read_text() for path in sorted(tmp_path.glob("etc/nvidia-container-runtime/*/*.csv")))
    listed = {line.removeprefix("dev, /dev/") for line in csv.splitlines()}
    # L4T 38's list lacks the nvidia-uvm nodes; R39's has them.
    assert set(opened) - listed <= ({"nvidia-uvm", "nvidia-uvm-tools"} if fixture.l4t_major == 38 else set())


@every_board
def test_masked_firmware_leaves_of_node_dangling(fixture: Fixture, tmp_path: Path) -> None:
    build(fixture, tmp_path, state="masked")
    assert list((tmp_path / "sys/firmware").iterdir()) == []
    if not fixture.is_pci:
        of_node = tmp_path / "sys" / fixture.gpu_device / "of_node"
        assert of_node.is_symlink()
        assert not of_node.exists()


@every_board
def test_first_power_on_brings_nodes_and_devfreq(fixture: Fixture, tmp_path: Path) -> None:
    build(fixture, tmp_path / "before", state="unpowered")
    build(fixture, tmp_path / "after", state="ready")
    for name in fixture.nodes_after_poweron:
        assert not (tmp_path / "before/dev" / name).exists()
        assert (tmp_path / "after/dev" / name).exists()
    devfreq = Path("sys/class/devfreq") / fixture.data["devfreq"]
    assert not (tmp_path / "before" / devfreq).exists()
    assert (tmp_path / "after" / devfreq / "device").samefile(tmp_path / "after/sys" / fixture.gpu_device)


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_device_nodes_can_be_real_null_devices(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path, nodes="char")
    node = (tmp_path / "dev/nvgpu/igpu0/ctrl").stat()
    assert stat.S_ISCHR(node.st_mode)
    assert node.st_rdev == os.makedev(1, 3)
    assert stat.S_IMODE(node.st_mode) == 0o660


def test_a_tree_is_not_built_over_another(tmp_path: Path) -> None:
    build(BOARDS["nano-jp4"], tmp_path)
    with pytest.raises(FileExistsError):
        build(BOARDS["nano-jp4"], tmp_path)


def test_a_sibling_cannot_have_facts_that_boards_do_not_have() -> None:
    with pytest.raises(KeyError, match="sock"):
        BOARDS["nano-jp4"].but(sock="tegra210")
