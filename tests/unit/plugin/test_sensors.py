# SPDX-License-Identifier: Apache-2.0
"""Power, heat and throttling of a board as metrics, if they are configured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tegra_device_plugin.config.settings import PluginSettings
from tegra_device_plugin.system.hosttree import HostTree
from tegra_device_plugin.telemetry import sensors
from tegra_device_plugin.telemetry.exposition import exposition

from tests import boards
from tests.boards import sensors as simulated
from tests.unit.plugin.test_pages import Plugin, values

Found = dict[str, dict[str, float]]
NAMES = {
    "tegra_power_watts",
    "tegra_temperature_celsius",
    "tegra_cooling_state",
    "tegra_overcurrent_events_total",
    "tegra_power_mode_number",
}


def read(root: Path) -> Found:
    """By metric, each value by the sensor's name."""
    page = exposition(sensors.read(HostTree(root)))
    return {
        name: {next(iter(labels.values()), ""): value for labels, value in samples}
        for name, samples in values(page).items()
        if not any(name in names for names in sensors.FOREIGN.values())
    }


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    boards.build(boards.load()["orinnano-jp6"], tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "watts"),
    [
        (simulated.ORIN, {"VDD_IN": 6.0, "VDD_CPU_GPU_CV": 2.0}),
        (simulated.NANO, {"POM_5V_IN": 2.5, "POM_5V_GPU": 0.04}),
        # As the chip measures it, not voltage times current.
        (simulated.THOR, {"VIN": 18.5}),
        ({}, {}),
    ],
)
def test_power_is_read_from_hwmon_and_iio(tmp_path: Path, files: dict[str, str], watts: Found) -> None:
    simulated.add(tmp_path, files)
    assert read(tmp_path).get("tegra_power_watts", {}) == pytest.approx(watts)


def test_cooling_devices_and_overcurrent_say_what_slows_the_board_down(orin: Path) -> None:
    simulated.add(orin)
    found = read(orin)
    assert found["tegra_cooling_state"] == {
        "cpufreq-cpu0": 0,
        "thermal-devfreq-0": 2,
        "cpu-throttle-alert": 1,
    }
    assert found["tegra_overcurrent_events_total"] == {"oc1": 0, "oc3": 7}


@pytest.mark.parametrize("board", ["nano-jp4", "xaviernx-jp5", "orinnano-jp6", "thor5000-jp70"])
def test_zones_have_their_temperature_unless_they_are_off(board: str, tmp_path: Path) -> None:
    boards.build(boards.load()[board], tmp_path)
    found = read(tmp_path)["tegra_temperature_celsius"]
    assert found
    assert all(0 < degrees < 120 for degrees in found.values())
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    (zone / "temp").write_text("-256000\n")
    assert read(tmp_path)["tegra_temperature_celsius"].keys() == found.keys() - {
        (zone / "type").read_text().strip()
    }


def test_sensors_with_one_name_have_series_of_their_own(tmp_path: Path) -> None:
    twice = {f"{simulated.HWMON}/hwmon{number}/{name}": value for number in (4, 5) for name, value in (
        ("name", "ina3221"), ("in1_label", "VDD_IN"), ("in1_input", "5000"), ("curr1_input", f"{number}00"),
    )}  # fmt: skip
    simulated.add(tmp_path, twice)
    assert read(tmp_path)["tegra_power_watts"] == pytest.approx({"VDD_IN": 2.0, "VDD_IN 2": 2.5})


@pytest.mark.parametrize("text", ["", "much", "1e9", "5000\n5000", "9" * 40])
def test_sensor_that_gives_no_number_has_no_sample(text: str, tmp_path: Path) -> None:
    simulated.add(tmp_path)
    (tmp_path / simulated.HWMON / "hwmon1/in1_input").write_text(text)
    assert set(read(tmp_path)["tegra_power_watts"]) == {"VDD_CPU_GPU_CV"}


async def test_heat_is_also_there_under_the_names_of_node_exporter(orin: Path) -> None:
    simulated.add(orin)
    chosen = PluginSettings(host_root=orin, board_metrics=True, foreign_metrics=("node-exporter",))
    found = values((await Plugin(orin).pages(settings=lambda: chosen).metrics()).text)
    zones = {labels["type"]: value for labels, value in found["node_thermal_zone_temp"]}
    assert zones == {labels["zone"]: value for labels, value in found["tegra_temperature_celsius"]}
    # As node_exporter has them, with fans.
    assert ({"name": "2", "type": "pwm-fan"}, 3) in found["node_cooling_device_cur_state"]


def test_power_mode_is_nvpmodels_number(orin: Path) -> None:
    simulated.add(orin)
    assert read(orin)["tegra_power_mode_number"] == {"": 2}
    (orin / "var/lib/nvpmodel/status").unlink()
    assert "tegra_power_mode_number" not in read(orin)


@pytest.mark.parametrize(
    ("files", "rails"),
    [
        (simulated.ORIN, {("vdd_in", "hwmon1/in1_label"): 6.0, ("vdd_cpu_gpu_cv", "hwmon1/in2_label"): 2.0}),
        # Kepler does not read this device.
        (
            simulated.NANO,
            {("pom_5v_in", "iio:device0/rail_name_0"): 2.5, ("pom_5v_gpu", "iio:device0/rail_name_1"): 0.04},
        ),
    ],
)
async def test_power_is_also_there_under_keplers_name(
    tmp_path: Path, files: dict[str, str], rails: dict[tuple[str, str], float]
) -> None:
    simulated.add(tmp_path, files)
    chosen = PluginSettings(host_root=tmp_path, board_metrics=True, foreign_metrics=("kepler",))
    found = values((await Plugin(tmp_path).pages(settings=lambda: chosen).metrics()).text)
    shown = {
        (labels["zone"], "/".join(labels["path"].split("/")[-2:])): value
        for labels, value in found["kepler_node_cpu_watts"]
    }
    assert shown == pytest.approx(rails)
    assert not found.keys() & set(sensors.NODE_EXPORTER)


async def test_page_has_them_only_if_configured_and_by_the_settings_of_the_moment(orin: Path) -> None:
    simulated.add(orin)
    plugin = Plugin(orin)
    chosen = PluginSettings(host_root=orin)
    pages = plugin.pages(settings=lambda: chosen)
    assert not NAMES & values((await pages.metrics()).text).keys()
    chosen = chosen._replace(board_metrics=True)
    assert values((await pages.metrics()).text).keys() >= NAMES
    chosen = chosen._replace(board_metrics=False)
    assert not NAMES & values((await pages.metrics()).text).keys()


async def test_sensors_are_read_at_most_every_five_seconds(orin: Path) -> None:
    simulated.add(orin)
    found = sensors.Sensors(orin)
    first = await found.metrics()
    (orin / simulated.HWMON / "hwmon1/curr1_input").write_text("9999\n")
    assert await found.metrics() == first


async def test_sensor_that_hangs_costs_its_metrics_and_nothing_else(
    orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "DEADLINE_SECONDS", 0.05)
    monkeypatch.setattr(sensors, "FRESH_SECONDS", 0.0)
    reading, writing = os.pipe()
    monkeypatch.setattr(sensors, "read", lambda _: os.read(reading, 1))
    found = sensors.Sensors(orin)
    assert await found.metrics() == ()
    assert await found.metrics() == ()  # the first read still hangs
    os.write(writing, b"x")


def test_nothing_is_imported_unless_configured() -> None:
    """_hashlib brings OpenSSL, which takes 3 MiB."""
    modules = ("cli", "commands.daemons", "plugin", "telemetry.plugin_pages")
    program = "".join(f"import tegra_device_plugin.{name}; " for name in modules)
    program += "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {*done.stdout.split()}
    assert "tegra_device_plugin.kubelet.unused_ledgers" in loaded
    assert not loaded & {"tegra_device_plugin.telemetry.sensors", "_hashlib", "tempfile"}
