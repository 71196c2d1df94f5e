# SPDX-License-Identifier: Apache-2.0
"""`before-kubelet`: what becomes of the kubelet's checkpoint."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tegra_device_plugin.cli import main
from tegra_device_plugin.kubelet.boot import CHECKPOINT, COPY, UNREADABLE
from tegra_device_plugin.kubelet.sockets import KUBELET_SOCKET, READY_SOCKET

from tests.conformance.fake_kubelet import refusing_socket


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with closing(refusing_socket(path)) as listener:
        listener.listen()
        yield


def checkpoint(*resources: str) -> str:
    devices = {name: ["igpu0"] for name in resources}
    return json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": devices}, "Checksum": 1})


def before_kubelet(directory: Path, *more: str) -> int:
    return main(["before-kubelet", f"--device-plugin-dir={directory}", "--wait=0.2", *more])


RENAMED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
UNITS = "sharing: {units: {memoryTotal: 4Gi}}"
MEMORY = "jetson-k3s.github.io/gpu-memory"
CAMERA, DEVICES = (
    "jetson-k3s.github.io/camera",
    "devices: [{name: camera, groups: [{paths: [{path: /dev/video0}]}]}]",
)
ARGUS = "devices: [{preset: argus}]"
OTHER = "smarter-devices/video0"
FORGOTTEN = "no pod is refused"


@pytest.mark.parametrize(
    ("config", "before", "says"),
    [
        ("", checkpoint("nvidia.com/gpu"), FORGOTTEN),
        (RENAMED, checkpoint("nvidia.com/gpu.shared"), FORGOTTEN),
        ("", checkpoint(), FORGOTTEN),
        ("", checkpoint("nvidia.com/gpu", OTHER), f"the kubelet also knows {OTHER}"),
        (RENAMED, checkpoint("nvidia.com/gpu"), "the kubelet also knows nvidia.com/gpu"),
        (UNITS, checkpoint(MEMORY), "with units or argus a kubelet that has forgotten"),
        (DEVICES, checkpoint("nvidia.com/gpu", CAMERA), FORGOTTEN),
        ("", checkpoint("nvidia.com/gpu", CAMERA), f"the kubelet also knows {CAMERA}"),
        (ARGUS, checkpoint("nvidia.com/gpu"), "with units or argus a kubelet that has forgotten"),
        ("", UNREADABLE, "no kubelet can read"),
        ("", '{"Data": ', "no kubelet can read"),
        ("", "", "no kubelet can read"),
    ],
)
def test_kubelet_forgets_the_plugins_resources_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, before: str, says: str
) -> None:
    settings, file = tmp_path / "config.yaml", tmp_path / CHECKPOINT
    settings.write_text(f"version: v1\n{config}\n")
    file.write_text(before)
    with listening(tmp_path / READY_SOCKET):
        assert before_kubelet(tmp_path, f"--config={settings}") == 0
    assert file.read_text() == (UNREADABLE if says == FORGOTTEN else before)
    assert (tmp_path / COPY).exists() is (says == FORGOTTEN)
    assert says != FORGOTTEN or (tmp_path / COPY).read_text() == before
    assert says in capsys.readouterr().out


def test_new_kubelet_has_no_checkpoint_and_gets_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would take the node for one that has offered its GPU before."""
    with listening(tmp_path / READY_SOCKET):
        assert before_kubelet(tmp_path) == 0
    assert not (tmp_path / CHECKPOINT).exists()
    assert "nothing to do: the kubelet has no" in capsys.readouterr().out


def test_kubelet_that_runs_keeps_its_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / CHECKPOINT).write_text(checkpoint("nvidia.com/gpu"))
    with listening(tmp_path / KUBELET_SOCKET):
        assert before_kubelet(tmp_path) == 0
    assert (tmp_path / CHECKPOINT).read_text() == checkpoint("nvidia.com/gpu")
    assert "the kubelet runs already" in capsys.readouterr().out


def test_kubelet_forgets_nothing_without_an_instance_that_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods would start without their GPU."""
    (tmp_path / CHECKPOINT).write_text(checkpoint("nvidia.com/gpu"))
    with listening(tmp_path / READY_SOCKET):
        pass  # its file is still there, and nobody listens
    assert before_kubelet(tmp_path) == 1
    assert (tmp_path / CHECKPOINT).read_text() == checkpoint("nvidia.com/gpu")
    assert "no instance with a healthy GPU was ready within 0.2 s" in capsys.readouterr().err


def test_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    """SIMULATED by a limit of this process: no byte can be written into a file."""
    (tmp_path / CHECKPOINT).write_text(checkpoint("nvidia.com/gpu"))
    command = (sys.executable, "-m", "tegra_device_plugin", "before-kubelet")
    with listening(tmp_path / READY_SOCKET):
        before = sorted(tmp_path.iterdir())
        ran = subprocess.run(
            [*command, f"--device-plugin-dir={tmp_path}", "--wait=10"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert "File too large" in ran.stderr
    assert str(tmp_path) in ran.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / CHECKPOINT).read_text() == checkpoint("nvidia.com/gpu")
