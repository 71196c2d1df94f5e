# SPDX-License-Identifier: Apache-2.0
"""The result of one observation of the GPU, and how many observations change its health."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.health import UNKNOWN, Health, Hysteresis, assess, sample
from tegra_device_plugin.system.hosttree import HostTree

from tests.boards import Fixture, State, build, load

T = TypeVar("T")
BOARDS = load()
ORIN = "sys/devices/platform/bus@0/17000000.gpu"


def _expected_reason(fixture: Fixture, state: State) -> str:
    if state in ("ready", "masked"):
        return "ok"
    if state == "dead":
        return "fell-off-bus" if fixture.is_pci else "power-failed"
    if fixture.is_pci:
        return "driver-unbound"
    # R32 has its nodes from the start, so the first container's first use switches the GPU on.
    return "ok" if fixture.l4t_major == 32 else "not-powered"


@pytest.mark.parametrize("state", ["ready", "unpowered", "dead", "masked"])
def test_every_board_in_every_state(board: Fixture, state: State, tmp_path: Path) -> None:
    build(board, tmp_path, state=state)
    found = assess(sample(tmp_path, detect(tmp_path).gpu))
    assert found.reason == _expected_reason(board, state)
    assert found.healthy == (found.reason == "ok")


def test_readings_have_the_kernels_units(board: Fixture, tmp_path: Path) -> None:
    build(board, tmp_path)
    if not board.is_pci:
        (tmp_path / "sys" / board.gpu_device / "load").write_text("345\n")
    seen = sample(tmp_path, detect(tmp_path).gpu)
    assert seen.load_percent == (None if board.is_pci else 34.5)
    assert seen.frequency_hz == board.data["devfreq_min"]
    assert seen.temperature_celsius == pytest.approx(48.0, abs=1)
    assert seen.critical_celsius is not None
    assert seen.critical_celsius > 90


ASLEEP = "echo suspended > $gpu/power/runtime_status"
# It opens, and reading it fails: EISDIR in the place of ENODEV.
UNREADABLE = "rm $gpu/{0}; mkdir $gpu/{0}"
ZONE = "sys/class/thermal/thermal_zone1"
# Shell scripts in the board's root directory; $gpu is the GPU's directory.
AFTER_READY = {
    "device gone": ("rm -r $gpu", "device-gone"),
    "driver unbound": ("rm $gpu/driver", "driver-unbound"),
    "runtime error": ("echo error > $gpu/power/runtime_status", "power-failed"),
    "stuck suspended": (f"{ASLEEP}; echo on > $gpu/power/control", "power-failed"),
    "railgated": (f"{ASLEEP}; echo yes > $gpu/is_railgated", "ok"),
    "railgated, zone off": (f"{ASLEEP}; echo -256000 > {ZONE}/temp", "ok"),
    "nvmap gone": ("rm dev/nvmap", "nodes-missing"),
    "nodes gone while asleep": (f"{ASLEEP}; rm dev/nvmap", "nodes-missing"),
    "old names gone": ("rm dev/nvhost-gpu dev/nvhost-as-gpu", "ok"),
    "both names gone": ("rm dev/nvhost-gpu dev/nvgpu/igpu0/ctrl", "nodes-missing"),
    "devfreq gone": ("rm -r $gpu/devfreq", "devfreq-missing"),
    "load fails": (UNREADABLE.format("load"), "unreadable"),
    "load fails while asleep": (f"{UNREADABLE.format('load')}; {ASLEEP}", "ok"),
    "no load file": ("rm $gpu/load", "ok"),
    "empty load": (": > $gpu/load", "ok"),
    "frequency fails": (UNREADABLE.format("devfreq/17000000.gpu/cur_freq"), "unreadable"),
    "at critical": (f"echo 104500 > {ZONE}/temp", "too-hot"),
    "below critical": (f"echo 104499 > {ZONE}/temp", "ok"),
    "zone without trips": (f"echo 150000 > {ZONE}/temp; rm {ZONE}/trip_point_*_type", "ok"),
    "no zone": (f"rm {ZONE}", "ok"),
    "/sys gone": ("rm -r sys", "device-gone"),
}


@pytest.mark.parametrize(("script", "reason"), AFTER_READY.values(), ids=AFTER_READY)
def test_faults_of_a_ready_gpu(script: str, reason: str, orin: Path) -> None:
    gpu = detect(orin).gpu
    subprocess.run(["sh", "-ec", script], cwd=orin, env=os.environ | {"gpu": ORIN}, check=True)
    assert assess(sample(orin, gpu)).reason == reason


@pytest.mark.parametrize("release", ["R28 (release), REVISION: 2.1", "R31 (release), REVISION: 1.0"])
def test_gpu_whose_device_nodes_are_not_known_is_unhealthy_with_what_to_do(release: str, orin: Path) -> None:
    """A container would start and find no GPU."""
    (orin / "etc/nv_tegra_release").write_text(f"# {release}, GCID: 1\n")
    gpu = detect(orin).gpu
    assert (gpu.state, gpu.device_nodes) == ("unsupported", ())
    found = assess(sample(orin, gpu))
    assert (found.healthy, found.reason) == (False, "unsupported")
    assert "older than R32" in found.detail and "flash JetPack 4.4 or newer" in found.detail


@pytest.mark.parametrize("board", ["agxorin-jp5", "agxorin-jp6"])
def test_zone_that_is_off_has_no_temperature(board: str, tmp_path: Path) -> None:
    build(BOARDS[board], tmp_path, state="unpowered")
    assert sample(tmp_path, detect(tmp_path).gpu).temperature_celsius is None


def test_zone_that_answers_eagain_is_only_off(orin: Path) -> None:
    temp = orin / ZONE / "temp"
    temp.unlink()
    os.mkfifo(temp)
    # With a writer, an empty FIFO answers a read that may not wait with EAGAIN.
    writer = os.open(temp, os.O_RDWR)
    seen = sample(orin, detect(orin).gpu)
    os.close(writer)
    assert seen.temperature_celsius is None
    assert assess(seen).healthy


def test_a_sleeping_pci_gpu_is_not_read(tmp_path: Path) -> None:
    build(BOARDS["thor5000-jp70"], tmp_path, state="dead")
    device = tmp_path / "sys" / BOARDS["thor5000-jp70"].gpu_device
    (device / "power/runtime_status").write_text("suspended\n")
    assert sample(tmp_path, detect(tmp_path).gpu).on_bus is None


def test_an_observation_does_not_wake_the_gpu(orin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpc_fs_mask", "fbp_fs_mask", "tpc_fs_mask"):
        (orin / ORIN / name).write_text("1\n")
    paths, read = [], HostTree.read

    def recording(host: HostTree, path: str) -> bytes:
        paths.append(path)
        return read(host, path)

    monkeypatch.setattr(HostTree, "read", recording)

    def read_by(observe: Callable[[], T]) -> T:
        paths.clear()
        found = observe()
        assert paths and not [path for path in paths if path.endswith("_fs_mask")]
        return found

    gpu = read_by(lambda: detect(orin).gpu)
    assert f"/{ORIN}/load" not in paths
    read_by(lambda: sample(orin, gpu))
    assert f"/{ORIN}/load" in paths
    (orin / ORIN / "power/runtime_status").write_text("suspended\n")
    read_by(lambda: sample(orin, gpu))
    assert f"/{ORIN}/load" not in paths


def test_an_absent_gpu_is_gone(tmp_path: Path) -> None:
    assert assess(sample(tmp_path, detect(tmp_path).gpu)).reason == "device-gone"


SEEN = {
    "good": Health(True, "ok", ""),
    "bad": Health(False, "nodes-missing", ""),
    "hot": Health(False, "too-hot", ""),
    "failed": UNKNOWN,
}
# By default two observations in a row make a GPU unhealthy, and three healthy again, the first time one.
SEQUENCES = [
    ("good", "ok"),
    ("bad", "nodes-missing"),
    ("failed", "unknown"),
    ("good bad good bad bad", "ok ok ok ok nodes-missing"),
    ("bad good", "nodes-missing ok"),
    ("good bad bad good good bad good good good", f"ok ok {'nodes-missing ' * 6}ok"),
    ("good failed failed", "ok ok unknown"),
    ("bad failed bad failed failed", f"{'nodes-missing ' * 4}unknown"),
    ("bad hot", "nodes-missing too-hot"),
]


@pytest.mark.parametrize(("seen", "reasons"), SEQUENCES)
def test_health_follows_consecutive_observations(seen: str, reasons: str) -> None:
    hysteresis = Hysteresis()
    assert [hysteresis.observe(SEEN[one]).reason for one in seen.split()] == reasons.split()


def test_a_change_that_waits_for_confirmation_is_unsettled() -> None:
    hysteresis, settled = Hysteresis(), []
    for one in ("good", "bad", "bad", "good"):
        hysteresis.observe(SEEN[one])
        settled.append(hysteresis.settled)
    assert settled == [True, False, True, False]
