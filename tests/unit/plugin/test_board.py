# SPDX-License-Identifier: Apache-2.0
"""The board of a host tree: every board, its siblings, other machines; the evidence; the catalogue."""

import fnmatch
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tegra_device_plugin.board import catalogue
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.health import assess, sample
from tegra_device_plugin.board.identity import identify
from tegra_device_plugin.board.labels import node_labels
from tegra_device_plugin.cli import main

from tests.boards import Fixture, State, build, load

BOARDS = load()


@pytest.mark.parametrize("state", ["ready", "unpowered", "dead", "masked"])
def test_every_board_is_identified_in_every_state(board: Fixture, state: State, tmp_path: Path) -> None:
    build(board, tmp_path, state=state)
    found = identify(tmp_path)
    assert (found.platform, found.soc, found.model) == ("tegra", board.soc, board.data["dt_model"])
    assert (found.l4t, found.jetpack) == (board.l4t, board.jetpack)
    assert found.module == (None if state == "masked" else board.reported_module)


# Of modules that boards.json does not have: a board like theirs, and what their device tree begins with.
COMPATIBLE = {
    "Jetson TX2 NX": ("tx2-jp4", "p3509-0000+p3636-0001 tegra186"),
    "Jetson TX2 4GB": ("tx2-jp4", "p2771-0888 tegra186"),
    "Jetson Nano 2GB": ("nano-jp4", "p3542-0000+p3448-0003 jetson-nano-2gb jetson-nano tegra210"),
    "Jetson AGX Xavier Industrial": ("xaviernx-jp5", "jetson-xavier-industrial jetson-xavier tegra194"),
    "Jetson AGX Xavier 16GB": ("xaviernx-jp5", "galen jetson-xavier p2822-0000+p2888-0001 tegra194"),
    "Clara AGX": ("xaviernx-jp5", "e3900-0000+p2888-0004 galen jetson-xavier tegra194"),
    "IGX Orin": ("agxorin-jp5", "p3740-0002+p3701-0002 tegra234 tegra23x"),
    "Jetson AGX Orin Developer Kit": ("agxorin-jp5", "p3737-0000+p3701-0000 tegra23x tegra234"),
    # Another maker's carrier, and a module that is not in the catalogue.
    "Jetson Orin NX 8GB": ("orinnx16-jp5", "acme,carrier-7 p3767-0001 tegra234 tegra23x"),
    "p3834-0005": ("thor5000-jp70", "p3971-0050+p3834-0005 tegra264"),
}


@pytest.mark.parametrize(("module", "base", "compatible"), [(key, *row) for key, row in COMPATIBLE.items()])
def test_a_module_is_known_by_its_device_tree(
    module: str, base: str, compatible: str, tmp_path: Path
) -> None:
    names = [name if "," in name else f"nvidia,{name}" for name in compatible.split()]
    build(BOARDS[base].but(dt_compatible=names), tmp_path)
    board = identify(tmp_path)
    assert (board.soc, board.module) == (BOARDS[base].soc, module)


SIBLINGS: dict[str, tuple[str, dict[str, Any], dict[str, str | None]]] = {
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
def test_unknown_releases_give_the_certain_part(
    line: str, l4t: str | None, jetpack: str | None, tmp_path: Path
) -> None:
    build(BOARDS["orinnano-jp6"].but(nv_tegra_release=line), tmp_path)
    board = identify(tmp_path)
    assert (board.l4t, board.jetpack) == (l4t, jetpack)
    assert board.soc == "tegra234"


def test_the_old_name_of_the_device_tree_works_too(tmp_path: Path) -> None:
    build(BOARDS["nano-jp4"], tmp_path)
    tree = tmp_path / "proc/device-tree"
    tree.unlink()
    (tmp_path / "sys/firmware/devicetree/base").rename(tree)
    assert identify(tmp_path).module == "Jetson Nano 4GB"


def test_the_driver_alone_identifies_a_tegra(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path, state="masked")
    shutil.rmtree(tmp_path / "sys/devices/soc0")
    board = identify(tmp_path)
    assert (board.platform, board.soc) == ("tegra", None)


def test_device_tree_wins_over_soc0(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"].but(soc0={"family": "Tegra", "soc_id": "25"}), tmp_path)
    board = identify(tmp_path)
    assert board.soc == "tegra234"
    assert any("tegra194" in entry.detail for entry in board.evidence), "what soc0 says is still shown"


PC = {"sys/class/dmi/id/product_name": "PowerEdge"}
L4T_CONTAINER = {"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1"}
DGX_SPARK = {"sys/devices/soc0/family": "jep106:0426", "sys/devices/soc0/soc_id": "jep106:0426:0901"}
RASPBERRY_PI = {"sys/firmware/devicetree/base/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0"}
DRIVER = "sys/bus/platform/drivers/gk20a"
DRIVER_WITHOUT_A_GPU = {f"{DRIVER}/bind": "", "sys/module/nvgpu/version": ""}


@pytest.mark.parametrize(
    "files", [PC, PC | L4T_CONTAINER, DGX_SPARK, RASPBERRY_PI, DRIVER_WITHOUT_A_GPU, {}], ids=", ".join
)
def test_other_machines_are_no_tegra(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if files == DRIVER_WITHOUT_A_GPU:
        (tmp_path / DRIVER / "module").symlink_to("../../../../module/nvgpu")
    board = identify(tmp_path)
    assert board.platform == "none"
    assert len(board.evidence) >= 4, "it must name the places it read"


GPU = "/sys/devices/platform/bus@0/17000000.gpu"
PCI = "/sys/devices/platform/bus@0/d0b0000000.pcie/pci0000:00/0000:00:00.0/0000:01:00.0"


def shown(root: Path) -> list[str]:
    """Every place: `+` and the finding, or `-`."""
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
    assert shown(tmp_path) == expected


def test_all_places_of_another_machine(tmp_path: Path) -> None:
    assert shown(tmp_path) == [
        "- /sys/firmware/devicetree/base/compatible",
        "- /sys/devices/soc0",
        "- /sys/bus/platform/drivers/gk20a",
        "- /etc/nv_tegra_release",
        "- gpu",
    ]


DEVICE_TREE, RELEASE = "/sys/firmware/devicetree/base/compatible", "/etc/nv_tegra_release"
SOC0, JETPACK, DEVFREQ = "/sys/devices/soc0", "catalogue: jetpack", "/sys/class/devfreq"
CHIP, STATE = "gpu chip", "gpu state"
STRANGE = "x" * 200


class Case(NamedTuple):
    """The entry of one place, on a board that differs by facts, by its state or by a shell script."""

    source: str
    entry: str
    state: State = "ready"
    script: str = ""
    changes: Mapping[str, Any] = {}
    board: str = "orinnano-jp6"


def release(text: str) -> dict[str, str]:
    """Give the fact of a board with another release file."""
    return {"nv_tegra_release": f"{text}\n# R36 (release), REVISION: 4.3\n"}


CASES = {
    "hidden device tree": Case(DEVICE_TREE, "- no device tree, or hidden from this container", "masked"),
    "never switched on": Case(
        STATE,
        "- never switched on since boot, or switching it on failed (runtime_status suspended)",
        "unpowered",
    ),
    "no devfreq yet": Case(DEVFREQ, "- no GPU there", "unpowered"),
    "another family": Case(
        SOC0,
        "- family i.MX8, soc_id 1: not a Tegra",
        changes={"soc0": {"family": "i.MX8", "soc_id": "1"}},
    ),
    "a chip that the catalogue does not know": Case(
        SOC0,
        "+ family Tegra, soc_id 99: a chip not in the catalogue",
        changes={"soc0": {"family": "Tegra", "soc_id": "99"}},
    ),
    "no chip id": Case(
        SOC0,
        "+ family Tegra, soc_id not given: a chip not in the catalogue",
        script="rm sys/devices/soc0/soc_id",
    ),
    "no release": Case(RELEASE, "- not there: the L4T release stays unknown", script=f"rm {RELEASE[1:]}"),
    "a strange release": Case(RELEASE, f"- not a release line: {STRANGE[:80]!r}", changes=release(STRANGE)),
    "an old release": Case(
        JETPACK,
        "- no release of the line of L4T 28.2.1",
        changes=release("# R28 (release), REVISION: 2.1, GCID: 1"),
    ),
    "a release after the last one": Case(
        JETPACK,
        "+ L4T 32.5.9 is JetPack 4.5, after the nearest one, 32.5.2",
        changes=release("# R32 (release), REVISION: 5.9, GCID: 1"),
    ),
    "no driver": Case(STATE, "- driver none instead of gk20a", script=f"rm {GPU[1:]}/driver"),
    "another driver": Case(
        STATE,
        "- driver nouveau instead of gk20a",
        script=f"mkdir nouveau; ln -sfn /nouveau {GPU[1:]}/driver",
    ),
    "no node": Case(STATE, "- no /dev/nvmap", script="rm dev/nvmap"),
    "another GPU than the SoC's": Case(
        CHIP,
        "+ GV11B by compatible nvidia,gv11b; but SoC tegra234 has GA10B",
        changes={"of_compatible": "nvidia,gv11b"},
    ),
    "a GPU known by its name": Case(
        CHIP, "+ GA10B by its name", changes={"of_compatible": "x,y"}, board="agxorin-jp5"
    ),
    "a GPU known by the SoC": Case(
        CHIP,
        "+ GA10B by SoC tegra234",
        "masked",
        f"printf 'OF_COMPATIBLE_0=acme,gpu\nOF_COMPATIBLE_N=1\n' > {GPU[1:]}/uevent",
    ),
    "an unknown GPU": Case(
        CHIP,
        "- compatible x,y, SoC tegra999: unknown",
        changes={"of_compatible": "x,y", "dt_compatible": ["nvidia,tegra999"]},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_place_has_its_finding_or_the_reason(case: Case, tmp_path: Path) -> None:
    build(BOARDS[case.board].but(**case.changes), tmp_path, state=case.state)
    subprocess.run(["sh", "-ec", case.script], cwd=tmp_path, check=True)
    found = {one.source: f"{'+' if one.found else '-'} {one.detail}" for one in detect(tmp_path).evidence}
    assert found[case.source] == case.entry


def test_a_card_of_another_maker_is_no_gpu(tmp_path: Path) -> None:
    build(BOARDS["thor5000-jp70"], tmp_path)
    (tmp_path / PCI[1:] / "vendor").write_text("0x1002\n")
    assert "- /sys/bus/pci/devices/0000:01:00.0" in shown(tmp_path)
    assert detect(tmp_path).gpu.state == "absent"
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0").unlink()
    assert "- /sys/bus/pci/devices/0000:01:00.0" in shown(tmp_path)


def test_the_whole_answer_of_detect(orin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", f"--host-root={orin}", "--output=json"]) == 0
    answer = json.loads(capsys.readouterr().out)
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
            "device_nodes": list(detect(orin).gpu.device_nodes),
            "memory_bytes": BOARDS["orinnano-jp6"].memory_bytes,
        },
    }


STATES: tuple[State, ...] = ("ready", "unpowered", "dead", "masked")


def damage(root: Path, choices: st.DataObject) -> None:
    """Remove files and directories, and write other bytes into files."""
    entries = sorted(root.rglob("*"))
    for _ in range(choices.draw(st.integers(1, 8), label="damages")):
        path = choices.draw(st.sampled_from(entries), label="entry")
        if not path.is_symlink() and not path.exists():
            continue  # gone with an earlier one
        garble = choices.draw(st.booleans(), label="garble")
        if garble and path.is_file():
            path.write_bytes(choices.draw(st.binary(max_size=40), label="content"))
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@settings(max_examples=150)
@given(st.sampled_from(sorted(BOARDS)), st.sampled_from(STATES), st.data())
def test_damage_gives_consistent_answers_and_no_error(
    board: str, state: State, choices: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        build(BOARDS[board], root, state=state)
        damage(root, choices)
        detection = detect(root)
        gpu, found = detection.gpu, node_labels(detection)
        health = assess(sample(root, gpu))
        if detection.board.platform == "none":
            assert gpu.state == "absent"
        if gpu.state == "absent":
            assert (gpu.sysfs, gpu.device_nodes, found) == (None, (), {})
            assert not health.healthy
        else:
            assert gpu.sysfs is not None
            assert (root / gpu.sysfs.lstrip("/")).is_dir()
            assert found["nvidia.com/gpu.count"] == "1"
        if gpu.state == "ready":
            assert (root / str(gpu.sysfs).lstrip("/") / "driver").is_dir()
        assert all((root / node.lstrip("/")).is_file() for node in gpu.device_nodes)
        assert all(value.isprintable() for value in found.values())
        assert detection.evidence


TABLES = catalogue.load()


def test_every_soc_has_its_chip() -> None:
    assert {soc.chip for soc in TABLES.socs.values()} == set(TABLES.chips)
    assert len({soc.soc_id for soc in TABLES.socs.values()}) == len(TABLES.socs)


def test_required_nodes_are_among_the_containers_nodes() -> None:
    given = list(itertools.chain(*TABLES.nodes.values()))
    for name in itertools.chain(*itertools.chain(*TABLES.drivers.values())):
        assert any(fnmatch.fnmatch(name.format(minor=0), pattern) for pattern in given), name


def test_releases_stand_from_the_oldest_to_the_newest() -> None:
    assert list(TABLES.jetpack) == sorted(TABLES.jetpack, key=catalogue.version)


@pytest.mark.parametrize("key", [*TABLES.jetpack, *TABLES.cuda, *TABLES.gpu_memory_cgroup_charged])
def test_releases_are_written_in_full(key: str) -> None:
    assert ".".join(map(str, catalogue.version(key))) == key
