# SPDX-License-Identifier: Apache-2.0
"""Where the integrated GPU is, what it is and whether it can be used, on every board and its siblings."""

import re
import shutil
from pathlib import Path

import pytest
from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.detection import Detection, detect
from tegra_device_plugin.board.health import assess, sample

from tests.boards import Fixture, State, build, load

BOARDS = load()
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


@pytest.mark.parametrize("state", ["ready", "masked", "unpowered", "dead"])
def test_every_gpu_is_found_in_every_state_with_all_its_facts(
    board: Fixture, state: State, tmp_path: Path
) -> None:
    gpu = _built(board, tmp_path, state).gpu
    # A PCI GPU that fell off the bus keeps its nodes and driver: only its health shows it.
    on = state in ("ready", "masked") or (board.is_pci and state == "dead")
    assert gpu.state == ("ready" if on else "unpowered")
    assert (gpu.chip, gpu.compute_capability) == (CHIPS[board.soc], board.compute_capability)
    assert (gpu.sysfs, gpu.memory_bytes) == (f"/sys/{board.gpu_device}", board.memory_bytes)
    assert [node for node in gpu.device_nodes if not (tmp_path / node.lstrip("/")).is_file()] == []
    assert sorted(set(gpu.device_nodes)) == list(gpu.device_nodes)
    assert not on or {f"/dev/{name}" for name in board.cuda_nodes} <= set(gpu.device_nodes)


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
    listed -= {f"/dev/{name}" for name in fixture.nodes_of_cards}
    for node in listed:
        (tmp_path / node[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / node[1:]).touch()
    gpu = detect(tmp_path).gpu
    assert (gpu.state, gpu.driver) == ("ready", fixture.data["driver"])
    assert listed - set(gpu.device_nodes) == set()
    beyond = {f"/dev/{name}" for name in BEYOND.get(fixture.l4t_major, "").split()}
    uvm = {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} if fixture.is_pci else set()  # in NVIDIA's list of R39
    present = {f"/{path.relative_to(tmp_path)}" for path in (tmp_path / "dev").rglob("*")}
    # The Tegra's display is nvidia1 or nvidia2 beside a card, and not in the lists.
    display = {"/dev/nvidia1", "/dev/nvidia2"} if fixture.cards else set()
    drm = {node for node in present if "/dri/" in node}
    assert set(gpu.device_nodes) - listed <= beyond | uvm | display | drm
    by_cdi = cdi.spec(tmp_path, gpu.device_nodes)["devices"][0]["containerEdits"]["deviceNodes"]
    assert {node["path"] for node in by_cdi} == set(gpu.device_nodes)


def test_user_nodes_alone_show_that_it_was_switched_on(orin: Path) -> None:
    shutil.rmtree(orin / "sys/class/devfreq")
    shutil.rmtree(orin / "sys/devices/platform/bus@0/17000000.gpu/devfreq")
    assert detect(orin).gpu.state == "ready"


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


def numbered(root: Path) -> list[str]:
    return [node for node in detect(root).gpu.device_nodes if re.fullmatch(r"/dev/nvidia[0-9]+", node)]


CARDS = [board for board in BOARDS.values() if board.cards]


@pytest.mark.parametrize("fixture", CARDS, ids=lambda one: one.id)
@pytest.mark.parametrize("answers", [True, False], ids=["answers", "no-answers"])
def test_nodes_of_a_card_are_not_given(fixture: Fixture, answers: bool, tmp_path: Path) -> None:
    build(fixture, tmp_path)
    if not answers:
        shutil.rmtree(tmp_path / "proc/driver")
    gpu = detect(tmp_path).gpu
    expected = {"tegra264": ["/dev/nvidia0", "/dev/nvidia2"], "tegra234": ["/dev/nvidia1"]}[fixture.soc]
    assert numbered(tmp_path) == expected
    assert {f"/dev/{name}" for name in fixture.nodes_of_cards} & set(gpu.device_nodes) == set()
    by_cdi = cdi.spec(tmp_path, gpu.device_nodes)["devices"][0]["containerEdits"]["deviceNodes"]
    assert {node["path"] for node in by_cdi} == set(gpu.device_nodes)


def test_a_third_node_of_the_driver_shows_a_card_that_sysfs_hides(tmp_path: Path) -> None:
    build(BOARDS["thor5000-jp70"], tmp_path)
    shutil.rmtree(tmp_path / "proc/driver")
    assert numbered(tmp_path) == ["/dev/nvidia0", "/dev/nvidia1"]
    (tmp_path / "dev/nvidia2").touch()
    assert numbered(tmp_path) == ["/dev/nvidia0", "/dev/nvidia2"]


def test_minors_are_those_that_the_driver_gave(tmp_path: Path) -> None:
    build(BOARDS["thor5000-card-jp71"], tmp_path)
    gpus = tmp_path / "proc/driver/nvidia/gpus"
    for address, minor in (("0000:01:00.0", 2), ("0005:01:00.0", 0)):
        (gpus / address / "information").write_text(f"Device Minor: \t {minor}\n")
    assert numbered(tmp_path) == ["/dev/nvidia1", "/dev/nvidia2"]
    (tmp_path / "dev/nvidia0").unlink()
    assert detect(tmp_path).gpu.state == "ready"
    (tmp_path / "dev/nvidia2").unlink()
    gpu = detect(tmp_path).gpu
    assert gpu.state == "unpowered"
    assert assess(sample(tmp_path, gpu)).detail == "no /dev/nvidia2"


def test_a_card_that_the_driver_does_not_serve_has_no_node(tmp_path: Path) -> None:
    build(BOARDS["thor5000-card-jp71"], tmp_path)
    (tmp_path / "proc/driver/nvidia/gpus/0005:01:00.0/information").unlink()
    assert numbered(tmp_path) == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]


def test_before_r36_no_numbered_node_is_the_tegras(tmp_path: Path) -> None:
    build(BOARDS["agxorin-jp5"], tmp_path)
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "proc/driver/nvidia/gpus/0005:01:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/gpus/0005:01:00.0/information").write_text("Device Minor: 0\n")
    assert numbered(tmp_path) == []


def test_an_unknown_soc_is_searched_everywhere(tmp_path: Path) -> None:
    changes = {"soc0": {"family": "Tegra", "soc_id": "99"}, "dt_compatible": ["nvidia,tegra999"]}
    nvgpu = _built(BOARDS["orinnano-jp6"].but(**changes), tmp_path / "nvgpu").gpu
    pci = _built(BOARDS["thor5000-jp70"].but(**changes), tmp_path / "pci").gpu
    assert (nvgpu.state, nvgpu.chip) == ("ready", "GA10B")
    assert (pci.state, pci.chip, pci.compute_capability) == ("ready", None, None)


def test_the_chip_of_a_hidden_device_tree_is_read_from_uevent(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path, state="masked")
    shutil.rmtree(tmp_path / "sys/devices/soc0")
    detection = detect(tmp_path)
    assert detection.board.soc is None
    assert detection.gpu.chip == "GA10B"


def test_a_chip_with_an_unknown_compatible_is_known_by_its_name(tmp_path: Path) -> None:
    gpu = _built(BOARDS["agxorin-jp5"].but(of_compatible="x,y"), tmp_path).gpu
    assert (gpu.state, gpu.chip) == ("ready", "GA10B")


def test_a_directory_is_not_a_device_node(orin: Path) -> None:
    node = orin / "dev/nvmap"
    node.unlink()
    node.mkdir()  # what Docker makes of a bind mount's missing source
    gpu = detect(orin).gpu
    assert gpu.state == "unpowered"
    assert "/dev/nvmap" not in gpu.device_nodes
