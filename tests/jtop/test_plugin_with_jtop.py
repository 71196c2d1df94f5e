# SPDX-License-Identifier: Apache-2.0
"""The plugin's commands on a simulated board where the real jtop service runs, and dies."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
from contextlib import suppress
from pathlib import Path

import pytest

from tests.boards import load
from tests.conformance.plugin import DEFAULT_COMMAND, free_address, page
from tests.conformance.plugin import running as plugin
from tests.jtop.service import GPU_MEMORY_KIB, packages, running
from tests.unit.plugin.test_jtop import eventually

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts need root"),
]

VERSION = "7.2.2"
ORIN = load()["orinnano-jp6"]
PLUGIN = Path(__file__).parents[2] / "plugin"


def said(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "tegra_device_plugin", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": f"{PLUGIN}:{packages(VERSION)}"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def test_detect_and_labels_know_more_with_jtop(tmp_path: Path) -> None:
    with running(VERSION, ORIN, tmp_path):
        facts = json.loads(said("detect", "--host-root", tmp_path, "--output", "json"))
        labels = json.loads(said("labels", "--host-root", tmp_path, "--output", "json"))
    evidence = {entry["source"]: entry for entry in facts["evidence"]}
    assert evidence["jtop"]["found"]
    assert "p3767-0005" in evidence["jtop"]["detail"]
    assert labels["jetson-k3s.github.io/power-mode"] == "25W"


async def test_metrics_have_telemetry_while_the_service_lives(tmp_path: Path) -> None:
    address, root = free_address(), tmp_path / "host"
    command = f"env PYTHONPATH={PLUGIN}:{packages(VERSION)} {DEFAULT_COMMAND}"

    def metrics() -> str:
        with suppress(urllib.error.URLError):  # it does not serve yet
            return page(address)
        return ""

    with tempfile.TemporaryDirectory() as short, running(VERSION, ORIN, root) as service:
        sockets = Path(short, "sockets")
        async with plugin(command, root, sockets, f"--metrics-address={address}"):
            await eventually(lambda: "tegra_power_mode" in metrics(), 60)
            assert 'tegra_power_mode{mode="25W"} 1' in metrics()
            assert f"tegra_gpu_memory_bytes {GPU_MEMORY_KIB * 1024}\n" in metrics()
            service.stop()
            await eventually(lambda: "tegra_power_mode" not in metrics(), 60)
            assert 'health="healthy"' in metrics(), "the GPU is as healthy as before"
