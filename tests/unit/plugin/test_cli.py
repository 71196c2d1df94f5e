# SPDX-License-Identifier: Apache-2.0
"""The commands: what they print, and their exit codes."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tegra_device_plugin import version
from tegra_device_plugin.cli import main
from tegra_device_plugin.telemetry import jtop

from tests import boards


def test_detect_on_another_machine_prints_the_searched_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detect", "--host-root", str(tmp_path)]) == 1
    assert "- " in capsys.readouterr().out


def test_a_signal_to_end_is_obeyed_while_modules_are_imported(tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "tegra_device_plugin", "run"]
    ended = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, check=False, timeout=30)
    assert (
        ended.returncode == 128 + signal.SIGTERM
    )  # a default action gives -SIGTERM, and nothing as process 1


TIME_SLICING = "timeSlicing: {{{}resources: [{{name: nvidia.com/gpu, replicas: 4}}]}}"
# Of a configuration: replicas, strategy, product and unit of memory, as gpu-feature-discovery has words.
SHARED = {
    "": ("1", "none", "Orin", None),
    TIME_SLICING.format(""): ("4", "time-slicing", "Orin-SHARED", None),
    TIME_SLICING.format("renameByDefault: true, "): ("4", "time-slicing", "Orin", None),
    "units: {memoryTotal: 6Gi}": (None, "time-slicing", "Orin", "256Mi"),
    "units: {preset: hami, memoryTotal: 6Gi}": (None, "time-slicing", "Orin-SHARED", "1Mi"),
    "units: {preset: koordinator, memoryTotal: 6Gi}": (None, "time-slicing", "Orin", "1percent"),
}


@pytest.mark.parametrize(("sharing", "expected"), SHARED.items())
def test_labels_show_sharing(
    sharing: str, expected: tuple[str | None, ...], orin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = orin / "config.yaml"
    config.write_text(f"version: v1\nsharing: {{{sharing}}}\n")
    assert main(["labels", "--host-root", str(orin), "--config", str(config), "--output=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = [f"nvidia.com/gpu.{name}" for name in ("replicas", "sharing-strategy", "product")]
    assert tuple(map(found.get, [*keys, "jetson-k3s.github.io/gpu-memory-unit"])) == expected


@pytest.mark.parametrize(
    ("board", "state", "policy", "label"),
    [
        ("orinnano-jp6", "ready", "burst-share", "weighted"),
        ("nano-jp4", "ready", "per-pod", "weighted"),
        ("thor5000-jp70", "ready", "burst-share", "unsupported"),
        ("orinnano-jp6", "ready", "best-effort", None),
        ("orinnano-jp6", "unpowered", "burst-share", None),
    ],
)
def test_labels_show_the_effect_of_weights(  # noqa: PLR0917 - a table and the fixtures
    board: str,
    state: boards.State,
    policy: str,
    label: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    boards.build(boards.load()[board], tmp_path, state=state)
    assert main(["labels", f"--host-root={tmp_path}", "--output=json", f"--qos-policy={policy}"]) == 0
    assert json.loads(capsys.readouterr().out).get("jetson-k3s.github.io/gpu-share") == label


def test_labels_and_detect_use_jtop(
    orin: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jtop, "read_once", lambda _root: jtop.Telemetry(power_mode="MAXN", module="Orin"))
    assert main(["detect", "--host-root", str(orin)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert {"  power_mode:          MAXN", "  + jtop module: Orin"} <= set(shown)
    assert main(["labels", "--host-root", str(orin)]) == 0
    assert "jetson-k3s.github.io/power-mode=MAXN" in capsys.readouterr().out.splitlines()


def test_no_labels_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labels", "--host-root", str(tmp_path)]) == 1
    assert capsys.readouterr().out.strip() == ""


def test_labels_into_a_file(orin: Path, tmp_path: Path) -> None:
    file = tmp_path / "labels"
    assert main(["labels", "--host-root", str(orin), "--output", "nfd", "--output-file", str(file)]) == 0
    assert "jetson-k3s.github.io/chip=GA10B" in file.read_text().splitlines()


def test_config_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("version: v1\n")
    assert main(["config", "check", str(config)]) == 0
    assert capsys.readouterr().out == f"{config}: good: 1 x nvidia.com/gpu\n"
    config.write_text("version: v1\nfoo: 1\n")
    assert main(["config", "check", str(config)]) == 2
    assert f"{config}:2: foo is not known" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["run", "--log-format", "xml"], ["run", "--config", "/nonexistent"]])
def test_run_with_bad_settings(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`run` in a process of its own, which is expected to end by itself."""
    command = [sys.executable, "-m", "tegra_device_plugin", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_run_where_the_address_is_taken(orin: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        places = (f"--host-root={orin}", f"--device-plugin-dir={tmp_path}")
        ended = run(f"--metrics-address={address}", *places)
    assert ended.returncode == 1
    assert address.rpartition(":")[2] in ended.stderr.splitlines()[-1]


def test_run_ends_with_an_error_when_one_of_its_parts_does(orin: Path, tmp_path: Path) -> None:
    ended = run(f"--host-root={orin}", f"--device-plugin-dir={tmp_path / ('long' * 30)}")
    assert ended.returncode == 1
    assert "too long for the sockets in it" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_version_and_the_revision_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "tegra_device_plugin"
    monkeypatch.setattr(version, "_PACKAGE", package)
    for revision in ("unknown", "abc"):
        with pytest.raises(SystemExit) as ended:
            main(["--version"])
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"tegra-device-plugin {version.VERSION} (revision {revision})\n"
        package.mkdir(exist_ok=True)
        (package / "REVISION").write_text("abc\n")
