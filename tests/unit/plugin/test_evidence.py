# SPDX-License-Identifier: Apache-2.0
"""What `detect` says it looked at: every place, whether it was found there, and what that place says."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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


DEVICE_TREE, RELEASE = "/sys/firmware/devicetree/base/compatible", "/etc/nv_tegra_release"
SOC0 = "/sys/devices/soc0"
CHIP, STATE = "gpu chip", "gpu state"
STRANGE = "x" * 200


class Case(NamedTuple):
    """What is said of a place on a board that differs by facts, by its state or after a shell script."""

    source: str
    said: str
    state: State = "ready"
    script: str = ""
    changes: Mapping[str, Any] = {}
    board: str = "orinnano-jp6"


def release(text: str) -> dict[str, str]:
    """The fact that is changed for another release file."""
    return {"nv_tegra_release": f"{text}\n# R36 (release), REVISION: 4.3\n"}


CASES = {
    "hidden device tree": Case(DEVICE_TREE, "- no device tree, or hidden from this container", "masked"),
    "never switched on": Case(
        STATE,
        "- never switched on since boot, or switching it on failed (runtime_status suspended)",
        "unpowered",
    ),
    "a chip to come": Case(
        SOC0,
        "+ family Tegra, soc_id 99: a chip not in the catalogue",
        changes={"soc0": {"family": "Tegra", "soc_id": "99"}},
    ),
    "no release": Case(RELEASE, "- not there: the L4T release stays unknown", script=f"rm {RELEASE[1:]}"),
    "a strange release": Case(RELEASE, f"- not a release line: {STRANGE[:80]!r}", changes=release(STRANGE)),
    "no driver": Case(STATE, "- driver none instead of gk20a", script=f"rm {GPU[1:]}/driver"),
    "no node": Case(STATE, "- no /dev/nvmap", script="rm dev/nvmap"),
    "another GPU than the SoC's": Case(
        CHIP,
        "+ GV11B by compatible nvidia,gv11b; but SoC tegra234 has GA10B",
        changes={"of_compatible": "nvidia,gv11b"},
    ),
    "a GPU known by its name": Case(
        CHIP, "+ GA10B by its name", changes={"of_compatible": "x,y"}, board="agxorin-jp5"
    ),
    "a GPU that is not known": Case(
        CHIP,
        "- compatible x,y, SoC tegra999: unknown",
        changes={"of_compatible": "x,y", "dt_compatible": ["nvidia,tegra999"]},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_of_one_place(case: Case, tmp_path: Path) -> None:
    build(BOARDS[case.board].but(**case.changes), tmp_path, state=case.state)
    subprocess.run(["sh", "-ec", case.script], cwd=tmp_path, check=True)
    found = {one.source: f"{'+' if one.found else '-'} {one.detail}" for one in detect(tmp_path).evidence}
    assert found[case.source] == case.said


def test_a_card_of_another_maker_is_no_gpu(tmp_path: Path) -> None:
    build(BOARDS["thor5000-jp70"], tmp_path)
    (tmp_path / PCI[1:] / "vendor").write_text("0x1002\n")
    assert "- /sys/bus/pci/devices/0000:01:00.0" in told(tmp_path)
    assert detect(tmp_path).gpu.state == "absent"
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0").unlink()
    assert "- /sys/bus/pci/devices/0000:01:00.0" in told(tmp_path)


def test_the_whole_answer_of_detect(orin: Path) -> None:
    detection = detect(orin)
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
