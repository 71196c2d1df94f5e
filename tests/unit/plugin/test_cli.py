# SPDX-License-Identifier: Apache-2.0
"""The commands: what they print, and their exit codes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tegra_device_plugin.cli import main
from tegra_device_plugin.signals import Signals
from tegra_device_plugin.telemetry import jtop

from tests import boards


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A simulated board."""
    root = tmp_path / "host"
    boards.build(boards.load()["orinnano-jp6"], root)
    return root


def test_detect_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "--host-root", str(root), "--output", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["platform"], facts["soc"], facts["gpu"]["chip"]) == ("tegra", "tegra234", "GA10B")
    assert {"source", "found", "detail"} == set(facts["evidence"][0])


def test_detect_as_text(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "--host-root", str(root)]) == 0
    out = capsys.readouterr().out
    assert "tegra234" in out and "looked at:" in out


def test_detect_elsewhere_says_what_was_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "--host-root", str(tmp_path)]) == 1
    assert "- " in capsys.readouterr().out


def test_labels_tell_of_sharing(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    sharing = "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
    config.write_text(f"version: v1\nsharing: {sharing}\n")
    assert main(["labels", "--host-root", str(root), "--config", str(config)]) == 0
    assert "nvidia.com/gpu.replicas=4" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("preset", "told"),
    [("none", ("256Mi", "Orin")), ("hami", ("1Mi", "Orin-SHARED")), ("koordinator", ("1percent", "Orin"))],
)
def test_labels_tell_of_units(
    preset: str, told: tuple[str, str], root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit, product = told
    config = tmp_path / "c.yaml"
    config.write_text(f"version: v1\nsharing: {{units: {{preset: {preset}, memoryTotal: 6Gi}}}}\n")
    assert main(["labels", "--host-root", str(root), "--config", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"jetson-k3s.github.io/gpu-memory-unit={unit}" in lines
    assert f"nvidia.com/gpu.product={product}" in lines


def test_labels_tell_the_power_mode_that_jtop_tells(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jtop, "read_once", lambda _root: jtop.Telemetry(power_mode="MAXN"))
    assert main(["labels", "--host-root", str(root)]) == 0
    assert "jetson-k3s.github.io/power-mode=MAXN" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("board", "arguments", "label"),
    [
        ("orinnano-jp6", ["--qos-policy=burst-share"], "weighted"),
        ("nano-jp4", ["--qos-policy=burst-share"], "weighted"),
        ("thor5000-jp70", ["--qos-policy=burst-share"], "unsupported"),
        ("orinnano-jp6", ["--qos-policy=best-effort"], None),
        ("orinnano-jp6", [], None),
    ],
)
def test_labels_tell_what_becomes_of_weights(
    board: str, arguments: list[str], label: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boards.build(boards.load()[board], tmp_path / "host")
    assert main(["labels", "--host-root", str(tmp_path / "host"), "--output=json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out).get("jetson-k3s.github.io/gpu-share") == label


def test_weights_of_a_gpu_that_was_never_switched_on_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boards.build(boards.load()["orinnano-jp6"], tmp_path / "host", state="unpowered")
    assert main(["labels", "--host-root", str(tmp_path / "host"), "--qos-policy=burst-share"]) == 0
    assert "gpu-share" not in capsys.readouterr().out


def test_only_run_keeps_the_signals(root: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signals = Signals()
    assert signal.getsignal(signal.SIGTERM) != before
    assert main(["detect", "--host-root", str(root)], signals) == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_no_labels_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labels", "--host-root", str(tmp_path)]) == 1
    assert capsys.readouterr().out.strip() == ""


def test_labels_into_a_file(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "labels"
    assert main(["labels", "--host-root", str(root), "--output", "nfd", "--output-file", str(file)]) == 0
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


def test_run_where_the_address_is_taken(root: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        places = (f"--host-root={root}", f"--device-plugin-dir={tmp_path}")
        ended = run(f"--metrics-address={address}", *places)
    assert ended.returncode == 1
    assert address.rpartition(":")[2] in ended.stderr.splitlines()[-1]


def test_run_ends_with_an_error_when_one_of_its_parts_does(root: Path, tmp_path: Path) -> None:
    ended = run(f"--host-root={root}", f"--device-plugin-dir={tmp_path / ('long' * 30)}")
    assert ended.returncode == 1
    assert "too long for the sockets in it" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_version_has_the_revision(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"tegra-device-plugin \S+ \(revision \S+\)\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["run", "--nonsense"], ["detect", "--output", "xml"]]
)
def test_bad_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
