# SPDX-License-Identifier: Apache-2.0
"""The plugin's commands on a simulated board where the real jtop service runs, and dies."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.boards import load
from tests.conformance.plugin import free_address, page
from tests.jtop.service import GPU_MEMORY_KIB, packages, running

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and mounts need root"),
]

VERSION = "7.2.2"
ORIN = load()["orinnano-jp6"]
PLUGIN = Path(__file__).parents[2] / "plugin"
COMMAND = (sys.executable, "-m", "tegra_device_plugin")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{PLUGIN}:{packages(VERSION)}"}


def said(*arguments: str | Path) -> str:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment()).stdout


def eventually(look: Callable[[], str], good: Callable[[str], bool], seconds: float = 60.0) -> str:
    """The first answer of `look` that is good; another process sends no event."""
    deadline = time.monotonic() + seconds
    while not good(answer := look()):
        assert time.monotonic() < deadline, f"still:\n{answer}"
        time.sleep(0.1)
    return answer


@contextmanager
def plugin(host_root: Path, kubelet_dir: Path) -> Iterator[Callable[[], str]]:
    """A running plugin; gives what its /metrics says at the moment, nothing while it does not answer."""
    address = free_address()
    options = (
        f"--host-root={host_root}",
        f"--device-plugin-dir={kubelet_dir}",
        f"--metrics-address={address}",
    )

    def metrics() -> str:
        try:
            return page(address)
        except urllib.error.URLError:
            return ""

    process = subprocess.Popen([*COMMAND, "run", *options], env=environment())
    try:
        yield metrics
        assert process.poll() is None, "it must not end with the service"
    finally:
        process.terminate()
        try:
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
            process.wait()


def test_detect_and_labels_know_more_with_jtop(tmp_path: Path) -> None:
    with running(VERSION, ORIN, tmp_path):
        facts = json.loads(said("detect", "--host-root", tmp_path, "--output", "json"))
        labels = json.loads(said("labels", "--host-root", tmp_path, "--output", "json"))
    evidence = {entry["source"]: entry for entry in facts["evidence"]}
    assert evidence["jtop"]["found"]
    assert "p3767-0005" in evidence["jtop"]["detail"]
    assert labels["jetson-k3s.github.io/power-mode"] == "25W"


def test_metrics_have_telemetry_while_the_service_lives(tmp_path: Path) -> None:
    host_root = tmp_path / "host"
    with (
        tempfile.TemporaryDirectory() as kubelet_dir,  # tmp_path is too long for sockets
        running(VERSION, ORIN, host_root) as service,
        plugin(host_root, Path(kubelet_dir)) as metrics,
    ):
        told = eventually(metrics, lambda text: "tegra_power_mode" in text)
        assert 'tegra_power_mode{mode="25W"} 1' in told
        value = next(line for line in told.splitlines() if line.startswith("tegra_gpu_memory_bytes "))
        assert float(value.split()[1]) == GPU_MEMORY_KIB * 1024
        service.stop()
        without = eventually(metrics, lambda text: bool(text) and "tegra_power_mode" not in text)
        assert 'health="healthy"' in without, "the GPU is as healthy as before"
