# SPDX-License-Identifier: Apache-2.0
"""Where the integrated GPU is, what it is and whether it can be used, on every board and its siblings."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.detection import Detection, detect

from tests.boards import Fixture, State, build, load
from tests.unit.plugin.reads import recorded_reads

BOARDS = load()
every_board = pytest.mark.parametrize("fixture", BOARDS.values(), ids=BOARDS)

CHIPS = {
    "tegra210": "GM20B",
    "tegra186": "GP10B",
    "tegra194": "GV11B",
    "tegra234": "GA10B",
    "tegra264": "GB10B",
}


def _built(fixture: Fixture, root: Path, state: State = "ready") -> Detection:
    build(fixture, root, state=state)
    return detect(root)


@every_board
@pytest.mark.parametrize("state", ["ready", "masked"])
def test_a_ready_gpu_is_found_with_all_its_facts(fixture: Fixture, state: State, tmp_path: Path) -> None:
    gpu = _built(fixture, tmp_path, state).gpu
    assert (gpu.state, gpu.chip) == ("ready", CHIPS[fixture.soc])
    assert gpu.compute_capability == fixture.compute_capability
    assert gpu.sysfs == f"/sys/{fixture.gpu_device}"
    assert gpu.memory_bytes == fixture.memory_bytes


@every_board
def test_device_nodes_are_what_cuda_needs_and_exist(fixture: Fixture, tmp_path: Path) -> None:
    gpu = _built(fixture, tmp_path).gpu
    assert {f"/dev/{name}" for name in fixture.cuda_nodes} <= set(gpu.device_nodes)
    assert [node for node in gpu.device_nodes if not (tmp_path / node.lstrip("/")).is_file()] == []
    assert sorted(set(gpu.device_nodes)) == list(gpu.device_nodes)


JETPACK_7_ORIN = BOARDS["orinnano-jp6"].but(
    l4t="39.2.0", nv_tegra_release="# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic\n"
)
# Nodes of nvgpu and host1x that the plugin gives beyond NVIDIA's lists of the line.
BEYOND = {
    32: "nvhost-ctxsw-gpu nvhost-sched-gpu nvhost-tsg-gpu",
    35: "host1x-fence nvgpu/igpu0/nvsched nvgpu/igpu0/sched nvhost-ctxsw-gpu nvhost-nvsched-gpu "
    "nvhost-power-gpu nvhost-prof-ctx-gpu nvhost-prof-dev-gpu nvhost-sched-gpu nvhost-tsg-gpu nvsciipc",
}


@pytest.mark.parametrize("fixture", [*BOARDS.values(), JETPACK_7_ORIN], ids=lambda one: f"{one.id}-{one.l4t}")
def test_a_container_gets_every_node_of_nvidias_lists(fixture: Fixture, tmp_path: Path) -> None:
    """NVIDIA's runtime (internal/platform-support/tegra/csv.go) injects the `dev` entries that exist.

    tests/boards/csv has L4T's lists: 32, 38 and 39 as in OE4T/meta-tegra, 35 as in L4T 35.3.1's package, 36
    as in the test data of nvidia-container-toolkit (rootfs-orin).
    """
    build(fixture, tmp_path)
    lists = (tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d").glob("*.csv")
    entries = (line.partition(",") for file in lists for line in file.read_text().splitlines())
    listed = {path.strip().replace("*", "128") for kind, _, path in entries if kind == "dev"}
    for node in listed:
        (tmp_path / node[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / node[1:]).touch()
    gpu = detect(tmp_path).gpu
    assert listed - set(gpu.device_nodes) == set()
    beyond = {f"/dev/{name}" for name in BEYOND.get(fixture.l4t_major, "").split()}
    uvm = {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} if fixture.is_pci else set()  # in NVIDIA's list of R39
    present = {f"/{path.relative_to(tmp_path)}" for path in (tmp_path / "dev").rglob("*")}
    assert set(gpu.device_nodes) - listed <= beyond | uvm | {node for node in present if "/dri/" in node}
    by_cdi = cdi.spec(tmp_path, gpu.device_nodes)["devices"][0]["containerEdits"]["deviceNodes"]
    assert {node["path"] for node in by_cdi} == set(gpu.device_nodes)


@every_board
@pytest.mark.parametrize("state", ["unpowered", "dead"])
def test_a_gpu_that_was_never_switched_on_is_not_ready(
    fixture: Fixture, state: State, tmp_path: Path
) -> None:
    gpu = _built(fixture, tmp_path, state).gpu
    # A PCI GPU that fell off the bus keeps its nodes and driver: only its health shows it.
    assert gpu.state == ("ready" if fixture.is_pci and state == "dead" else "unpowered")
    assert gpu.chip == CHIPS[fixture.soc]
    assert gpu.sysfs == f"/sys/{fixture.gpu_device}"
    assert [node for node in gpu.device_nodes if not (tmp_path / node.lstrip("/")).is_file()] == []


@every_board
def test_first_power_on_is_seen_at_the_next_look(fixture: Fixture, tmp_path: Path) -> None:
    before = _built(fixture, tmp_path, "unpowered")
    for path in tmp_path.iterdir():
        shutil.rmtree(path)
    after = _built(fixture, tmp_path, "ready")
    assert (before.gpu.state, after.gpu.state) == ("unpowered", "ready")
    assert set(before.gpu.device_nodes) <= set(after.gpu.device_nodes)


def test_display_nodes_before_r36_are_left_out(tmp_path: Path) -> None:
    orin = _built(BOARDS["agxorin-jp5"], tmp_path / "orin").gpu
    thor = _built(BOARDS["thor5000-jp70"], tmp_path / "thor").gpu
    assert "/dev/nvidia0" not in orin.device_nodes
    assert "/dev/nvidia0" in thor.device_nodes
    assert "/dev/nvidia1" in thor.device_nodes  # its display, and in NVIDIA's list


def test_orin_on_jetpack_7_is_still_nvgpu(tmp_path: Path) -> None:
    release = "# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic\n"
    gpu = _built(BOARDS["agxorin-jp6"].but(l4t="39.2.0", nv_tegra_release=release), tmp_path).gpu
    assert (gpu.state, gpu.chip, gpu.driver) == ("ready", "GA10B", "gk20a")


def test_user_nodes_alone_show_that_it_was_switched_on(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    shutil.rmtree(tmp_path / "sys/class/devfreq")
    shutil.rmtree(tmp_path / "sys/devices/platform/bus@0/17000000.gpu/devfreq")
    assert detect(tmp_path).gpu.state == "ready"


def test_discrete_gpu_mode_of_igx_has_no_integrated_gpu(tmp_path: Path) -> None:
    build(BOARDS["agxorin-jp5"], tmp_path)
    for path in ("sys/class/devfreq", "sys/bus/platform", "sys/devices/platform", "dev/nvgpu"):
        shutil.rmtree(tmp_path / path)
    detection = detect(tmp_path)
    assert detection.board.platform == "tegra"
    assert (detection.gpu.state, detection.gpu.device_nodes) == ("absent", ())


def test_a_tegra_whose_gpu_is_disabled_has_none(tmp_path: Path) -> None:
    build(BOARDS["agxorin-jp5"], tmp_path)
    bus = tmp_path / "sys/bus/platform"
    for link in (bus / "devices/17000000.ga10b", bus / "drivers/gk20a/17000000.ga10b"):
        link.unlink()
    shutil.rmtree(tmp_path / "sys/class/devfreq")
    (bus / "devices/13e00000.host1x").symlink_to("../../../devices/soc0")
    assert detect(tmp_path).gpu.state == "absent"
    (bus / "devices/13e00000.host1x").unlink()
    assert detect(tmp_path).gpu.state == "absent"


def test_a_card_in_a_slot_is_not_thors_gpu(tmp_path: Path) -> None:
    build(BOARDS["thor5000-jp70"], tmp_path)
    integrated = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    integrated.rename(integrated.with_name("0001:01:00.0"))
    assert detect(tmp_path).gpu.state == "absent"


def test_another_makers_pci_device_is_not_thors_gpu(tmp_path: Path) -> None:
    fixture = BOARDS["thor5000-jp70"]
    assert _built(fixture.but(gpu_attrs={"vendor": "0x144d"}), tmp_path).gpu.state == "absent"


def test_discrete_nvidia_card_on_a_pc_is_no_tegra_gpu(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    detection = detect(tmp_path)
    assert (detection.board.platform, detection.gpu.state) == ("none", "absent")


def test_foreign_driver_is_named(tmp_path: Path) -> None:
    build(BOARDS["nano-jp4"], tmp_path)
    driver = tmp_path / "sys/devices/57000000.gpu/driver"
    driver.unlink()
    nouveau = tmp_path / "sys/bus/platform/drivers/nouveau"
    nouveau.mkdir()
    driver.symlink_to("../../bus/platform/drivers/nouveau")
    gpu = detect(tmp_path).gpu
    assert gpu.state == "unpowered"
    assert any("nouveau" in entry.detail for entry in gpu.evidence)


def test_unknown_soc_is_looked_at_everywhere(tmp_path: Path) -> None:
    changes = {"soc0": {"family": "Tegra", "soc_id": "99"}, "dt_compatible": ["nvidia,tegra999"]}
    nvgpu = _built(BOARDS["orinnano-jp6"].but(**changes), tmp_path / "nvgpu").gpu
    pci = _built(BOARDS["thor5000-jp70"].but(**changes), tmp_path / "pci").gpu
    assert (nvgpu.state, nvgpu.chip) == ("ready", "GA10B")
    assert (pci.state, pci.chip, pci.compute_capability) == ("ready", None, None)


def test_chip_of_a_hidden_device_tree_is_told_by_uevent(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path, state="masked")
    shutil.rmtree(tmp_path / "sys/devices/soc0")
    detection = detect(tmp_path)
    assert detection.board.soc is None
    assert detection.gpu.chip == "GA10B"


CHIP_EVIDENCE: dict[str, tuple[str, dict[str, Any], str]] = {
    "by compatible": ("orinnano-jp6", {}, "GA10B by compatible nvidia,ga10b"),
    "by name": ("agxorin-jp5", {"of_compatible": "x,y"}, "GA10B by its name"),
    "by SoC": ("orinnano-jp6", {"of_compatible": "x,y"}, "GA10B by SoC tegra234"),
    "disagreement": (
        "orinnano-jp6",
        {"of_compatible": "nvidia,gv11b"},
        "GV11B by compatible nvidia,gv11b; but SoC tegra234 has GA10B",
    ),
    "unknown": (
        "orinnano-jp6",
        {"of_compatible": "x,y", "dt_compatible": ["nvidia,tegra999"]},
        "compatible x,y, SoC tegra999: unknown",
    ),
}


@pytest.mark.parametrize(("board", "changes", "detail"), CHIP_EVIDENCE.values(), ids=CHIP_EVIDENCE)
def test_the_evidence_says_what_the_chip_is_known_by(
    board: str, changes: dict[str, Any], detail: str, tmp_path: Path
) -> None:
    gpu = _built(BOARDS[board].but(**changes), tmp_path).gpu
    (told,) = (entry for entry in gpu.evidence if entry.source == "gpu chip")
    assert (told.detail, told.found) == (detail, gpu.chip is not None)
    assert detail.startswith(gpu.chip or "compatible")


def test_a_directory_is_not_a_device_node(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    node = tmp_path / "dev/nvmap"
    node.unlink()
    node.mkdir()  # what Docker makes of a bind mount's missing source
    gpu = detect(tmp_path).gpu
    assert gpu.state == "unpowered"
    assert "/dev/nvmap" not in gpu.device_nodes


def test_detection_does_not_read_what_wakes_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    for name in ("gpc_fs_mask", "fbp_fs_mask", "tpc_fs_mask"):
        (tmp_path / "sys/devices/platform/bus@0/17000000.gpu" / name).write_text("1\n")
    read = recorded_reads(monkeypatch)
    detect(tmp_path)
    assert any(path.endswith("compatible") for path in read), "the record itself must work"
    assert [path for path in read if path.endswith(("_fs_mask", "load"))] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_real_device_nodes_count(tmp_path: Path) -> None:
    fixture = BOARDS["orinnano-jp6"]
    build(fixture, tmp_path, nodes="char")
    gpu = detect(tmp_path).gpu
    assert gpu.state == "ready"
    assert {f"/dev/{name}" for name in fixture.cuda_nodes} <= set(gpu.device_nodes)


def test_json_form_has_the_promised_keys(tmp_path: Path) -> None:
    answer = json.loads(json.dumps(_built(BOARDS["orinnano-jp6"], tmp_path).as_dict()))
    assert list(answer) == ["platform", "soc", "l4t", "jetpack", "module", "model", "gpu", "evidence"]
    assert list(answer["gpu"]) == [
        "chip",
        "compute_capability",
        "state",
        "sysfs",
        "device_nodes",
        "memory_bytes",
    ]
    assert {tuple(entry) for entry in answer["evidence"]} == {("source", "found", "detail")}
