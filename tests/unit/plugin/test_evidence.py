# SPDX-License-Identifier: Apache-2.0
"""What `detect` says it looked at: every place, whether it was found there, and what that place says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.board.detection import detect

from tests.boards import State, build, load

BOARDS = load()
GPU = "/sys/devices/platform/bus@0/17000000.gpu"
PCI = "/sys/devices/platform/bus@0/d0b0000000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0"


def told(root: Path) -> list[str]:
    """Every place: `+` and what was found there, or `-` and whatever is said of why not."""
    return [
        f"+ {one.source}: {one.detail}" if one.found else f"- {one.source}" for one in detect(root).evidence
    ]


ORIN = [
    "+ /sys/firmware/devicetree/base/compatible: "
    "nvidia,p3768-0000+p3767-0005-super nvidia,p3767-0005 nvidia,tegra234",
    "+ /sys/devices/soc0: family Tegra, soc_id 35: tegra234",
    "+ /sys/bus/platform/drivers/gk20a: bound to a device",
    "+ /etc/nv_tegra_release: 36.4.3",
    "+ catalogue: jetpack: L4T 36.4.3 is JetPack 6.2",
    f"+ /sys/class/devfreq: {GPU}",
    f"+ driver gk20a: {GPU}",
    f"+ /sys/bus/platform/devices: {GPU}",
    "+ gpu chip: GA10B by compatible nvidia,ga10b",
    "+ gpu state: driver gk20a, device nodes are there",
]
THOR = [
    "+ /sys/firmware/devicetree/base/compatible: "
    "nvidia,p4071-0000+p3834-0008 nvidia,p3834-0008 nvidia,tegra264",
    "+ /sys/devices/soc0: family Tegra, soc_id 38: tegra264",
    "- /sys/bus/platform/drivers/gk20a",
    "+ /etc/nv_tegra_release: 38.2.0",
    "+ catalogue: jetpack: L4T 38.2.0 is JetPack 7.0",
    f"+ /sys/bus/pci/devices/0000:01:00.0: {PCI}",
    "+ gpu chip: GB10B by SoC tegra264",
    "+ gpu state: driver nvidia, device nodes are there",
]


@pytest.mark.parametrize(("board", "expected"), [("orinnano-jp6", ORIN), ("thor5000-jp70", THOR)])
def test_all_places_of_a_ready_board(board: str, expected: list[str], tmp_path: Path) -> None:
    build(BOARDS[board], tmp_path)
    assert told(tmp_path) == expected


def test_all_places_of_another_machine(tmp_path: Path) -> None:
    assert told(tmp_path) == [
        "- /sys/firmware/devicetree/base/compatible",
        "- /sys/devices/soc0",
        "- /sys/bus/platform/drivers/gk20a",
        "- /etc/nv_tegra_release",
        "- gpu",
    ]


def _without(name: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / name
        (shutil.rmtree if path.is_dir() and not path.is_symlink() else Path.unlink)(path)

    return damage


def _with(name: str, text: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / name).write_text(text)

    return damage


def _as_it_is(_root: Path) -> None:
    """Nothing is changed."""


CHANGES: dict[str, tuple[dict[str, Any], State, Callable[[Path], None], dict[str, str]]] = {
    "hidden device tree": (
        {},
        "masked",
        _as_it_is,
        {"/sys/firmware/devicetree/base/compatible": "- no device tree, or hidden from this container"},
    ),
    "never switched on": (
        {},
        "unpowered",
        _as_it_is,
        {
            "/sys/class/devfreq": "- no GPU there",
            "gpu state": "- never switched on since boot, or switching it on failed "
            "(runtime_status suspended)",
        },
    ),
    "another family": (
        {"soc0": {"family": "i.MX8", "soc_id": "1"}},
        "ready",
        _as_it_is,
        {"/sys/devices/soc0": "- family i.MX8, soc_id 1: not a Tegra"},
    ),
    "a chip to come": (
        {"soc0": {"family": "Tegra", "soc_id": "99"}},
        "ready",
        _as_it_is,
        {"/sys/devices/soc0": "+ family Tegra, soc_id 99: a chip not in the catalogue"},
    ),
    "no chip id": (
        {},
        "ready",
        _without("sys/devices/soc0/soc_id"),
        {"/sys/devices/soc0": "+ family Tegra, soc_id not given: a chip not in the catalogue"},
    ),
    "no release": (
        {},
        "ready",
        _without("etc/nv_tegra_release"),
        {"/etc/nv_tegra_release": "- not there: the L4T release stays unknown"},
    ),
    "a strange release": (
        {},
        "ready",
        _with("etc/nv_tegra_release", "x" * 200 + "\n# R36 (release), REVISION: 4.3\n"),
        {"/etc/nv_tegra_release": f"- not a release line: {'x' * 80!r}"},
    ),
    "an old release": (
        {},
        "ready",
        _with(
            "etc/nv_tegra_release",
            "# R28 (release), REVISION: 2.1, GCID: 1\n# R36 (release), REVISION: 4.3\n",
        ),
        {
            "/etc/nv_tegra_release": "+ 28.2.1",
            "catalogue: jetpack": "- no release of the line of L4T 28.2.1",
        },
    ),
    "a release after the last one": (
        {},
        "ready",
        _with("etc/nv_tegra_release", "# R32 (release), REVISION: 5.9, GCID: 1\n"),
        {"catalogue: jetpack": "+ L4T 32.5.9 is JetPack 4.5, after the nearest one, 32.5.2"},
    ),
    "no driver": (
        {},
        "ready",
        _without(f"{GPU[1:]}/driver"),
        {"gpu state": "- driver none instead of gk20a"},
    ),
    "no node": (
        {},
        "ready",
        _without("dev/nvmap"),
        {"gpu state": "- no /dev/nvmap"},
    ),
    "another GPU than the SoC's": (
        {"dt_compatible": ["nvidia,tegra194"]},
        "ready",
        _as_it_is,
        {"gpu chip": "+ GA10B by compatible nvidia,ga10b; but SoC tegra194 has GV11B"},
    ),
    "a GPU known by the SoC": (
        {},
        "masked",
        _with(f"{GPU[1:]}/uevent", "OF_COMPATIBLE_0=acme,gpu\nOF_COMPATIBLE_N=1\n"),
        {"gpu chip": "+ GA10B by SoC tegra234"},
    ),
}


@pytest.mark.parametrize(("changes", "state", "damage", "expected"), CHANGES.values(), ids=CHANGES)
def test_what_is_said_of_one_place(
    changes: dict[str, Any],
    state: State,
    damage: Callable[[Path], None],
    expected: dict[str, str],
    tmp_path: Path,
) -> None:
    build(BOARDS["orinnano-jp6"].but(**changes), tmp_path, state=state)
    damage(tmp_path)
    found = {one.source: f"{'+' if one.found else '-'} {one.detail}" for one in detect(tmp_path).evidence}
    assert {source: found.get(source) for source in expected} == expected


def test_a_card_of_another_maker_is_no_gpu(tmp_path: Path) -> None:
    build(BOARDS["thor5000-jp70"], tmp_path)
    (tmp_path / PCI[1:] / "vendor").write_text("0x1002\n")
    assert "- /sys/bus/pci/devices/0000:01:00.0" in told(tmp_path)
    assert detect(tmp_path).gpu.state == "absent"
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0").unlink()
    assert "- /sys/bus/pci/devices/0000:01:00.0" in told(tmp_path)


def test_the_whole_answer_of_detect(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    detection = detect(tmp_path)
    answer = detection.as_dict()
    evidence = answer.pop("evidence")
    assert evidence[3] == {"source": "/etc/nv_tegra_release", "found": True, "detail": "36.4.3"}
    assert answer == {
        "platform": "tegra",
        "soc": "tegra234",
        "l4t": "36.4.3",
        "jetpack": "6.2",
        "module": "Jetson Orin Nano 8GB",
        "model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        "gpu": {
            "chip": "GA10B",
            "compute_capability": "8.7",
            "state": "ready",
            "sysfs": GPU,
            "device_nodes": list(detection.gpu.device_nodes),
            "memory_bytes": BOARDS["orinnano-jp6"].memory_bytes,
        },
    }
