# SPDX-License-Identifier: Apache-2.0
"""The plugin's telemetry against the real jtop service, of both versions that boards have."""

import logging
import os
import sys
import tempfile
import urllib.error
from contextlib import suppress
from pathlib import Path

import pytest
from tegra_device_plugin.telemetry.jtop import Client, read_once

from tests.boards import load
from tests.conformance.plugin import DEFAULT_COMMAND, free_address, page
from tests.conformance.plugin import running as plugin
from tests.jtop.service import GPU_MEMORY_KIB, packages, running
from tests.unit.plugin.test_jtop import eventually

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts need root"),
]

BOARDS = load()
VERSIONS = ("4.3.2", "7.2.2")  # the last one of JetPack 4's Python, and of today's
PLUGIN = Path(__file__).parents[2] / "plugin"

# jtop's name for the module; power mode and load as the simulated board has them.
MODULES = {
    "nano-jp4": "NVIDIA Jetson Nano (4 GB ram)",
    "tx2-jp4": "NVIDIA Jetson TX2",
    "xaviernx-jp5": "NVIDIA Jetson Xavier NX (Developer kit)",
    "agxorin-jp5": "NVIDIA Jetson AGX Orin",
    "orinnano-jp6": "NVIDIA Jetson Orin Nano (Developer kit)",
}


def client(version: str) -> Client:
    """The plugin's own client process, with jetson-stats of a version, in more of a hurry than usual."""
    command = ("env", f"PYTHONPATH={packages(version)}:{PLUGIN}", sys.executable)
    return Client(
        (*command, "-m", "tegra_device_plugin.telemetry.jtop_client"),
        interval=0.5,
        first_deadline=5.0,
        deadline=2.0,
        retries=(0.2,),
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("board", MODULES)
def test_all_telemetry_arrives(version: str, board: str, tmp_path: Path) -> None:
    fixture = BOARDS[board]
    with running(version, fixture, tmp_path) as service:
        (tmp_path / "sys" / fixture.gpu_device / "load").write_text("345\n")
        told = read_once(service.host_root, client(version))
    assert told is not None
    assert told.gpu_load_percent == 34.5
    assert told.gpu_frequency_hz == fixture.data["devfreq_min"]
    assert told.gpu_temperature_celsius == pytest.approx(48.0, abs=1)
    assert told.gpu_memory_bytes == GPU_MEMORY_KIB * 1024
    assert told.memory_total_bytes == fixture.memory_bytes
    assert told.memory_used_bytes == pytest.approx(fixture.memory_bytes / 2, rel=0.01)
    assert told.power_mode == fixture.data["nvpmodel"][fixture.data["nvpmodel_default"]]
    assert told.module == MODULES[board]
    assert told.part_number == fixture.data["p_number"]
    assert told.jetpack == fixture.jetpack


def test_thor_without_nvml_tells_what_it_can(tmp_path: Path) -> None:
    with running("7.2.2", BOARDS["thor5000-jp70"], tmp_path) as service:
        told = read_once(service.host_root, client("7.2.2"))
    assert told is not None
    assert told.gpu_load_percent is None
    assert told.memory_total_bytes == BOARDS["thor5000-jp70"].memory_bytes
    assert told.gpu_temperature_celsius == pytest.approx(48.0, abs=1)


@pytest.mark.parametrize(("service_version", "client_version"), [VERSIONS, VERSIONS[::-1]])
def test_another_version_is_said(
    service_version: str, client_version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running(service_version, BOARDS["orinnano-jp6"], tmp_path) as service:
        assert read_once(service.host_root, client(client_version)) is None
    assert service_version in caplog.text
    assert client_version in caplog.text


async def test_metrics_have_telemetry_while_the_service_lives(tmp_path: Path) -> None:
    address, root = free_address(), tmp_path / "host"
    command = f"env PYTHONPATH={PLUGIN}:{packages(VERSIONS[-1])} {DEFAULT_COMMAND}"

    def metrics() -> str:
        with suppress(urllib.error.URLError):  # it does not serve yet
            return page(address)
        return ""

    with (
        tempfile.TemporaryDirectory() as short,
        running(VERSIONS[-1], BOARDS["orinnano-jp6"], root) as service,
    ):
        sockets = Path(short, "sockets")
        async with plugin(command, root, sockets, f"--metrics-address={address}"):
            await eventually(lambda: "tegra_power_mode" in metrics(), 60)
            assert 'tegra_power_mode{mode="25W"} 1' in metrics()
            assert f"tegra_gpu_memory_bytes {GPU_MEMORY_KIB * 1024}\n" in metrics()
            service.stop()
            await eventually(lambda: "tegra_power_mode" not in metrics(), 60)
            assert 'health="healthy"' in metrics(), "the GPU is as healthy as before"
