# SPDX-License-Identifier: Apache-2.0
"""What one look at the GPU means, and how many looks make a verdict."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.gpu import Gpu
from tegra_device_plugin.board.health import UNKNOWN, Health, Hysteresis, Sample, judge, sample

from tests.boards import Fixture, State, build, load
from tests.unit.plugin.reads import recorded_reads

BOARDS = load()
every_board = pytest.mark.parametrize("fixture", BOARDS.values(), ids=BOARDS)
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


@every_board
@pytest.mark.parametrize("state", ["ready", "unpowered", "dead", "masked"])
def test_every_board_in_every_state(fixture: Fixture, state: State, tmp_path: Path) -> None:
    build(fixture, tmp_path, state=state)
    verdict = judge(sample(tmp_path, detect(tmp_path).gpu))
    assert verdict.reason == _expected_reason(fixture, state)
    assert verdict.healthy == (verdict.reason == "ok")


@every_board
def test_readings_have_the_kernels_units(fixture: Fixture, tmp_path: Path) -> None:
    build(fixture, tmp_path)
    device = tmp_path / "sys" / fixture.gpu_device
    if not fixture.is_pci:
        (device / "load").write_text("345\n")
    seen = sample(tmp_path, detect(tmp_path).gpu)
    assert seen.load_percent == (None if fixture.is_pci else 34.5)
    assert seen.frequency_hz == fixture.data["devfreq_min"]
    assert seen.temperature_celsius == pytest.approx(48.0, abs=1)
    assert seen.critical_celsius is not None
    assert seen.critical_celsius > 90


def _remove(*names: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for name in names:
            path = root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    return damage


def _write(**files: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for name, text in files.items():
            (root / ORIN / name.replace("__", "/")).write_text(text)

    return damage


def _unreadable(*names: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for name in names:
            (root / ORIN / name).unlink()
            (root / ORIN / name).mkdir()  # opens, and reading it fails: EISDIR in the place of ENODEV

    return damage


def _zone(temperature: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / "sys/class/thermal/thermal_zone1/temp").write_text(temperature)

    return damage


def _both(*damages: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        for one in damages:
            one(root)

    return damage


DEVFREQ = f"{ORIN}/devfreq"
AFTER_READY: dict[str, tuple[Callable[[Path], None], str]] = {
    "device gone": (_remove(ORIN), "device-gone"),
    "driver unbound": (_remove(f"{ORIN}/driver"), "driver-unbound"),
    "runtime error": (_write(power__runtime_status="error\n"), "power-failed"),
    "stuck suspended": (_write(power__runtime_status="suspended\n", power__control="on\n"), "power-failed"),
    "railgated": (_write(power__runtime_status="suspended\n", is_railgated="yes\n"), "ok"),
    "railgated, zone off": (_both(_write(power__runtime_status="suspended\n"), _zone("-256000\n")), "ok"),
    "nvmap gone": (_remove("dev/nvmap"), "nodes-missing"),
    "nodes gone while asleep": (
        _both(_write(power__runtime_status="suspended\n"), _remove("dev/nvmap")),
        "nodes-missing",
    ),
    "old names gone": (_remove("dev/nvhost-gpu", "dev/nvhost-as-gpu"), "ok"),
    "both names gone": (_remove("dev/nvhost-gpu", "dev/nvgpu/igpu0/ctrl"), "nodes-missing"),
    "devfreq gone": (_remove(DEVFREQ), "devfreq-missing"),
    "load fails": (_unreadable("load"), "unreadable"),
    "load fails while asleep": (
        _both(_unreadable("load"), _write(power__runtime_status="suspended\n")),
        "ok",
    ),
    "no load file": (_remove(f"{ORIN}/load"), "ok"),
    "empty load": (_write(load=""), "ok"),
    "frequency fails": (_unreadable("devfreq/17000000.gpu/cur_freq"), "unreadable"),
    "at critical": (_zone("104500\n"), "too-hot"),
    "below critical": (_zone("104499\n"), "ok"),
    "zone without trips": (
        _both(
            _zone("150000\n"),
            _remove(*(f"sys/class/thermal/thermal_zone1/trip_point_{i}_type" for i in (0, 1))),
        ),
        "ok",
    ),
    "no zone": (_remove("sys/class/thermal/thermal_zone1"), "ok"),
    "/sys gone": (_remove("sys"), "device-gone"),
}


@pytest.mark.parametrize(("damage", "reason"), AFTER_READY.values(), ids=AFTER_READY)
def test_what_happens_to_a_ready_gpu(damage: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    gpu = detect(tmp_path).gpu
    damage(tmp_path)
    assert judge(sample(tmp_path, gpu)).reason == reason


@pytest.mark.parametrize("board", ["agxorin-jp5", "agxorin-jp6"])
def test_zone_that_is_off_has_no_temperature(board: str, tmp_path: Path) -> None:
    build(BOARDS[board], tmp_path, state="unpowered")
    assert sample(tmp_path, detect(tmp_path).gpu).temperature_celsius is None


def test_zone_that_answers_eagain_is_only_off(tmp_path: Path) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    temp = tmp_path / "sys/class/thermal/thermal_zone1/temp"
    temp.unlink()
    os.mkfifo(temp)
    writer = os.open(
        temp, os.O_RDWR
    )  # with a writer, an empty FIFO answers a read that may not wait with EAGAIN
    try:
        seen = sample(tmp_path, detect(tmp_path).gpu)
    finally:
        os.close(writer)
    assert seen.temperature_celsius is None
    assert judge(seen).healthy


def test_a_sleeping_pci_gpu_is_not_asked(tmp_path: Path) -> None:
    build(BOARDS["thor5000-jp70"], tmp_path, state="dead")
    device = tmp_path / "sys" / BOARDS["thor5000-jp70"].gpu_device
    (device / "power/runtime_status").write_text("suspended\n")
    assert sample(tmp_path, detect(tmp_path).gpu).on_bus is None


def test_looking_does_not_read_what_wakes_or_keeps_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(BOARDS["orinnano-jp6"], tmp_path)
    gpu = detect(tmp_path).gpu
    read = recorded_reads(monkeypatch)
    sample(tmp_path, gpu)
    assert f"/{ORIN}/load" in read
    read.clear()
    (tmp_path / ORIN / "power/runtime_status").write_text("suspended\n")
    sample(tmp_path, gpu)
    assert f"/{ORIN}/load" not in read
    assert [path for path in read if path.endswith("_fs_mask")] == []


def test_an_absent_gpu_is_gone(tmp_path: Path) -> None:
    assert judge(sample(tmp_path, detect(tmp_path).gpu)).reason == "device-gone"


@pytest.fixture
def looks(tmp_path: Path) -> tuple[Sample, Sample]:
    """A good and a bad look at the same GPU."""
    build(BOARDS["orinnano-jp6"], tmp_path)
    gpu: Gpu = detect(tmp_path).gpu
    good = sample(tmp_path, gpu)
    (tmp_path / "dev/nvmap").unlink()
    return good, sample(tmp_path, gpu)


def _reasons(hysteresis: Hysteresis, seen: list[Sample | None]) -> list[str]:
    return [hysteresis.observe(judge(one) if one else UNKNOWN).reason for one in seen]


def test_first_look_decides_alone(looks: tuple[Sample, Sample]) -> None:
    good, bad = looks
    assert _reasons(Hysteresis(), [good]) == ["ok"]
    assert _reasons(Hysteresis(), [bad]) == ["nodes-missing"]
    assert Hysteresis().observe(UNKNOWN) == UNKNOWN


def test_two_bad_looks_in_a_row_make_it_unhealthy(looks: tuple[Sample, Sample]) -> None:
    good, bad = looks
    assert _reasons(Hysteresis(bad=2), [good, bad, good, bad, bad]) == ["ok"] * 4 + ["nodes-missing"]


def test_three_good_looks_in_a_row_make_it_healthy_again(looks: tuple[Sample, Sample]) -> None:
    good, bad = looks
    seen: list[Sample | None] = [bad, good, good, bad, good, good, good]
    assert _reasons(Hysteresis(good=3), seen) == ["nodes-missing"] * 6 + ["ok"]


def test_looks_that_fail_end_in_unknown_and_unhealthy(looks: tuple[Sample, Sample]) -> None:
    assert _reasons(Hysteresis(bad=2), [looks[0], None, None]) == ["ok", "ok", "unknown"]


def test_one_failed_look_does_not_replace_a_reason(looks: tuple[Sample, Sample]) -> None:
    _, bad = looks
    expected = ["nodes-missing", "nodes-missing", "nodes-missing", "nodes-missing", "unknown"]
    assert _reasons(Hysteresis(bad=2), [bad, None, bad, None, None]) == expected


def test_the_reason_follows_while_it_stays_unhealthy(looks: tuple[Sample, Sample]) -> None:
    hysteresis = Hysteresis()
    hysteresis.observe(judge(looks[1]))
    hot = Health(False, "too-hot", "")
    assert hysteresis.observe(hot) == hot


def test_a_change_that_waits_for_confirmation_is_unsettled(looks: tuple[Sample, Sample]) -> None:
    good, bad = looks
    hysteresis = Hysteresis(bad=2)
    assert [
        (hysteresis.observe(judge(one)).reason, hysteresis.settled) for one in (good, bad, bad, good)
    ] == [
        ("ok", True),
        ("ok", False),
        ("nodes-missing", True),
        ("nodes-missing", False),
    ]


@given(st.lists(st.booleans(), min_size=1), st.integers(1, 4), st.integers(1, 4))
def test_a_verdict_changes_only_after_enough_looks_in_a_row(looked: list[bool], bad: int, good: int) -> None:
    healthy = Sample(
        device=True, expected_driver="gk20a", driver="gk20a", runtime_status="active", devfreq=True
    )
    hysteresis = Hysteresis(bad=bad, good=good)
    verdicts: list[Health] = [hysteresis.observe(judge(healthy) if fine else UNKNOWN) for fine in looked]
    for index in range(1, len(looked)):
        before, now = verdicts[index - 1].healthy, verdicts[index].healthy
        needed = good if now else bad
        streak = looked[max(0, index - needed + 1) : index + 1]
        if before != now:
            assert streak == [now] * needed
        elif before != looked[index]:
            assert streak != [looked[index]] * (good if looked[index] else bad)
