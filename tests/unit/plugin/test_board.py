# SPDX-License-Identifier: Apache-2.0
"""Which board a host tree is: every board, its siblings, and machines that are none."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.board.identity import identify

from tests.boards import Fixture, State, build, load

BOARDS = load()
every_board = pytest.mark.parametrize("fixture", BOARDS.values(), ids=BOARDS)


@every_board
@pytest.mark.parametrize("state", ["ready", "unpowered", "dead"])
def test_every_board_is_identified_in_every_state(fixture: Fixture, state: State, tmp_path: Path) -> None:
    build(fixture, tmp_path, state=state)
    board = identify(tmp_path)
    assert (board.platform, board.soc, board.l4t, board.jetpack) == (
        "tegra",
        fixture.soc,
        fixture.l4t,
        fixture.jetpack,
    )
    assert board.module == fixture.reported_module
    assert board.model == fixture.data["dt_model"]


@every_board
def test_hidden_device_tree_still_gives_soc_and_model(fixture: Fixture, tmp_path: Path) -> None:
    build(fixture, tmp_path, state="masked")
    board = identify(tmp_path)
    assert (board.platform, board.soc, board.jetpack) == ("tegra", fixture.soc, fixture.jetpack)
    assert board.model == fixture.data["dt_model"]
    assert board.module is None
    assert not board.evidence[0].found


SIBLINGS: dict[str, tuple[str, dict[str, Any], dict[str, str | None]]] = {
    "TX2 NX": (
        "tx2-jp4",
        {"dt_compatible": ["nvidia,p3509-0000+p3636-0001", "nvidia,tegra186"], "dt_model": "lanai-3636"},
        {"soc": "tegra186", "module": "Jetson TX2 NX", "model": "lanai-3636"},
    ),
    "TX2 4GB": (
        "tx2-jp4",
        {"dt_compatible": ["nvidia,p2771-0888", "nvidia,tegra186"]},
        {"soc": "tegra186", "module": "Jetson TX2 4GB"},
    ),
    "Nano 2GB": (
        "nano-jp4",
        {
            "dt_compatible": [
                "nvidia,p3542-0000+p3448-0003",
                "nvidia,jetson-nano-2gb",
                "nvidia,jetson-nano",
                "nvidia,tegra210",
            ]
        },
        {"soc": "tegra210", "module": "Jetson Nano 2GB"},
    ),
    "AGX Xavier industrial": (
        "xaviernx-jp5",
        {
            "dt_compatible": ["nvidia,jetson-xavier-industrial", "nvidia,jetson-xavier", "nvidia,tegra194"],
            "dt_model": "Jetson-AGXi",
        },
        {"soc": "tegra194", "module": "Jetson AGX Xavier Industrial"},
    ),
    "AGX Xavier on JetPack 5": (
        "xaviernx-jp5",
        {
            "dt_compatible": [
                "nvidia,galen",
                "nvidia,jetson-xavier",
                "nvidia,p2822-0000+p2888-0001",
                "nvidia,tegra194",
            ]
        },
        {"soc": "tegra194", "module": "Jetson AGX Xavier 16GB"},
    ),
    "Clara AGX": (
        "xaviernx-jp5",
        {
            "dt_compatible": [
                "nvidia,e3900-0000+p2888-0004",
                "nvidia,galen",
                "nvidia,jetson-xavier",
                "nvidia,tegra194",
            ],
        },
        {"soc": "tegra194", "module": "Clara AGX"},
    ),
    "IGX Orin": (
        "agxorin-jp5",
        {"dt_compatible": ["nvidia,p3740-0002+p3701-0002", "nvidia,tegra234", "nvidia,tegra23x"]},
        {"soc": "tegra234", "module": "IGX Orin"},
    ),
    "SoC after the family": (
        "agxorin-jp5",
        {"dt_compatible": ["nvidia,p3737-0000+p3701-0000", "nvidia,tegra23x", "nvidia,tegra234"]},
        {"soc": "tegra234", "module": "Jetson AGX Orin Developer Kit"},
    ),
    "Orin NX 8GB emulated on AGX Orin": (
        "agxorin-jp5",
        {"dt_model": "Jetson AGX Orin as NX-16GB"},
        {"soc": "tegra234", "model": "Jetson AGX Orin as NX-16GB"},
    ),
    "another maker's carrier": (
        "orinnx16-jp5",
        {"dt_compatible": ["acme,carrier-7", "nvidia,p3767-0001", "nvidia,tegra234", "nvidia,tegra23x"]},
        {"soc": "tegra234", "module": "Jetson Orin NX 8GB"},
    ),
    "a module not in the catalogue": (
        "thor5000-jp70",
        {"dt_compatible": ["nvidia,p3971-0050+p3834-0005", "nvidia,tegra264"]},
        {"soc": "tegra264", "module": "p3834-0005"},
    ),
    "Orin on JetPack 7.2": (
        "agxorin-jp6",
        {
            "l4t": "39.2.0",
            "nv_tegra_release": "# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic\n",
        },
        {"soc": "tegra234", "l4t": "39.2.0", "jetpack": "7.2"},
    ),
    "family named by its chip": (
        "tx2-jp4",
        {"soc0": {"family": "tegra186", "soc_id": "24"}, "dt_compatible": ["nvidia,quill"]},
        {"soc": "tegra186", "module": "Jetson TX2"},
    ),
    "chip id that the catalogue does not know": (
        "thor5000-jp70",
        {"soc0": {"family": "Tegra", "soc_id": "39"}},
        {"soc": "tegra264"},
    ),
    "a chip to come": (
        "thor5000-jp70",
        {"soc0": {"family": "Tegra", "soc_id": "39"}, "dt_compatible": ["nvidia,tegra274"]},
        {"platform": "tegra", "soc": "tegra274", "module": None},
    ),
}


@pytest.mark.parametrize(("base", "changes", "expected"), SIBLINGS.values(), ids=SIBLINGS)
def test_siblings_follow_the_same_rules(
    base: str, changes: dict[str, Any], expected: dict[str, str | None], tmp_path: Path
) -> None:
    build(BOARDS[base].but(**changes), tmp_path)
    board = identify(tmp_path)
    assert {key: getattr(board, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("line", "l4t", "jetpack"),
    [
        ("# R36 (release), REVISION: 5.9, GCID: 1, BOARD: generic", "36.5.9", "6.2"),
        ("# R36 (release), REVISION: 5.2, GCID: 46426093, BOARD: generic", "36.5.2", "6.2.3"),
        ("# R36 (release), REVISION: 9.0, GCID: 1, BOARD: generic", "36.9.0", "6"),
        ("# R32 (release), REVISION: 5.0, GCID: 1, BOARD: t186ref", "32.5.0", "4.5"),
        ("# R32 (release), REVISION: 5, GCID: 1, BOARD: t186ref", "32.5", "4.5"),
        ("# R35 (release), REVISION: 6.4.1, GCID: 1, BOARD: t186ref", "35.6.4.1", "5.1.6"),
        ("# R28 (release), REVISION: 2.1, GCID: 1, BOARD: t186ref", "28.2.1", None),
        ("# R36 (release), REVISION: 0.0, GCID: 1, BOARD: generic", "36.0.0", "6.0 EA"),
        ("no release line", None, None),
        ("", None, None),
    ],
)
def test_releases_degrade_to_what_is_certain(
    line: str, l4t: str | None, jetpack: str | None, tmp_path: Path
) -> None:
    build(BOARDS["orinnano-jp6"].but(nv_tegra_release=line), tmp_path)
    board = identify(tmp_path)
    assert (board.l4t, board.jetpack) == (l4t, jetpack)
    assert board.soc == "tegra234"


def test_nearest_release_is_named_in_the_evidence(tmp_path: Path) -> None:
    release = "# R36 (release), REVISION: 5.1, GCID: 1, BOARD: generic\n"
    build(BOARDS["orinnano-jp6"].but(nv_tegra_release=release), tmp_path)
    assert any("36.5.0" in entry.detail for entry in identify(tmp_path).evidence)


def test_without_release_file_the_board_is_still_known(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    (tmp_path / "etc/nv_tegra_release").unlink()
    board = identify(tmp_path)
    assert (board.platform, board.soc, board.l4t, board.jetpack) == ("tegra", "tegra234", None, None)


def test_old_name_of_the_device_tree_serves_too(tmp_path: Path) -> None:
    build(BOARDS["nano-jp4"], tmp_path)
    tree = tmp_path / "proc/device-tree"
    tree.unlink()
    (tmp_path / "sys/firmware/devicetree/base").rename(tree)
    assert identify(tmp_path).module == "Jetson Nano 4GB"


def test_only_the_driver_is_left_to_see(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path, state="masked")
    shutil.rmtree(tmp_path / "sys/devices/soc0")
    board = identify(tmp_path)
    assert (board.platform, board.soc) == ("tegra", None)


def test_device_tree_wins_over_soc0(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"].but(soc0={"family": "Tegra", "soc_id": "25"}), tmp_path)
    board = identify(tmp_path)
    assert board.soc == "tegra234"
    assert any("tegra194" in entry.detail for entry in board.evidence), "what soc0 says is still told"


def _x86(root: Path) -> None:
    (root / "sys/class/dmi/id").mkdir(parents=True)
    (root / "sys/class/dmi/id/product_name").write_text("PowerEdge\n")


def _dgx_spark(root: Path) -> None:
    (root / "sys/firmware/acpi/tables").mkdir(parents=True)
    soc0 = root / "sys/devices/soc0"
    soc0.mkdir(parents=True)
    (soc0 / "family").write_text("jep106:0426\n")
    (soc0 / "soc_id").write_text("jep106:0426:0901\n")


def _raspberry_pi(root: Path) -> None:
    tree = root / "sys/firmware/devicetree/base"
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"raspberrypi,5-model-b\0brcm,bcm2712\0")


def _driver_that_serves_nothing(root: Path) -> None:
    driver = root / "sys/bus/platform/drivers/gk20a"
    driver.mkdir(parents=True)
    (driver / "bind").touch()
    (root / "sys/module/nvgpu").mkdir(parents=True)
    (driver / "module").symlink_to("../../../../module/nvgpu")


def _l4t_container_on_a_pc(root: Path) -> None:
    _x86(root)
    (root / "etc").mkdir()
    (root / "etc/nv_tegra_release").write_text("# R36 (release), REVISION: 4.3, GCID: 1\n")


def _nothing(root: Path) -> None:
    root.mkdir(exist_ok=True)


@pytest.mark.parametrize(
    "machine",
    [_x86, _dgx_spark, _raspberry_pi, _driver_that_serves_nothing, _l4t_container_on_a_pc, _nothing],
)
def test_other_machines_are_no_tegra(machine: Any, tmp_path: Path) -> None:
    machine(tmp_path)
    board = identify(tmp_path)
    assert board.platform == "none"
    assert len(board.evidence) >= 4, "it must say what was looked at"


def test_what_lies_outside_the_root_is_not_read(tmp_path: Path) -> None:
    build(BOARDS["nano-jp4"], tmp_path / "outside")
    root = tmp_path / "root"
    root.mkdir()
    (root / "sys").symlink_to("../outside/sys")
    (root / "etc").symlink_to(tmp_path / "outside/etc")
    assert identify(root).platform == "none"


def test_absolute_links_stay_below_the_root(tmp_path: Path) -> None:
    build(BOARDS["nano-jp4"], tmp_path)
    tree = tmp_path / "sys/firmware/devicetree/base"
    tree.rename(tmp_path / "dt")
    tree.symlink_to("/dt")
    assert identify(tmp_path).module == "Jetson Nano 4GB"


def test_garbage_is_survived(tmp_path: Path) -> None:
    build(BOARDS["nano-jp4"], tmp_path)
    (tmp_path / "sys/firmware/devicetree/base/compatible").write_bytes(b"\xff\xfe\0\0\xc3\0")
    (tmp_path / "sys/devices/soc0/family").write_bytes(b"\xff" * 9000)
    (tmp_path / "etc/nv_tegra_release").write_bytes(b"\0\xff# R")
    board = identify(tmp_path)
    assert (board.platform, board.soc, board.l4t) == ("tegra", None, None), "the driver is still bound"
