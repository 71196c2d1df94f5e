# SPDX-License-Identifier: Apache-2.0
"""What koordlet is reported of the GPU. tests/acceptance has the Device in a cluster with its CRD."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin import cli
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.board.health import Health
from tegra_device_plugin.boardwatch import BoardWatch
from tegra_device_plugin.config.settings import PluginSettings, load_plugin
from tegra_device_plugin.kubelet.endpoint import AdvertisedResources
from tegra_device_plugin.plugin import ResourcePublisher, prerequisites
from tegra_device_plugin.sharing import koordinator

from tests import boards
from tests.conformance.plugin import Node

# What becomes of XPUDeviceInfo (pkg/koordlet/util/device.go) in a Device: the model is a label, errCode is
# the reason of a condition.
LABEL = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
ERROR_CODE = re.compile("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


Make = Callable[[str], PluginSettings]


@pytest.fixture
def make(orin: Path, tmp_path: Path) -> Make:
    (orin / "var/run/koordlet").mkdir(parents=True)
    node = Node(tmp_path)

    def settings(preset: str) -> PluginSettings:
        node.share(f"units: {{preset: {preset}, memoryTotal: 4Gi}}")
        found = load_plugin(node.config, {}, {"host_root": str(orin)})
        return found._replace(gpu_limit_dir=node.limit, gpu_limit_library=node.library)

    return settings


def watched(settings: PluginSettings) -> BoardWatch[PluginSettings]:
    return BoardWatch(
        settings,
        prerequisites(settings),
        ResourcePublisher(AdvertisedResources()),
        [koordinator.Koordlet().report],
    )


def reported(settings: PluginSettings) -> Any:
    """What is in koordlet's directory, in which it reads every file."""
    (file,) = (settings.host_root / "var/run/koordlet/xpu-device-infos").iterdir()
    return json.loads(file.read_text())


async def test_koordlet_gets_the_gpu_and_its_health(make: Make) -> None:
    settings = make("koordinator")
    watch = watched(settings)
    await watch.observe()
    assert reported(settings) == [{
        "vendor": "nvidia", "model": "Jetson-Orin-Nano-8GB", "uuid": "igpu0", "minor": "0",
        "resources": {
            "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
            "koordinator.sh/gpu.shared": "100", "koordinator.sh/gpu-memory": "4Gi",
        },
        "status": {"healthy": True},
    }]  # fmt: skip
    settings.gpu_limit_library.write_bytes(b"")
    await watch.observe()
    await watch.observe()
    (one,) = reported(settings)
    assert (one["status"]["healthy"], one["status"]["errCode"]) == (False, "LimitMissing")
    assert "is empty" in one["status"]["errMessage"]


def test_every_board_and_reason_is_fit_for_labels_and_conditions(
    board: boards.Fixture, make: Make, tmp_path: Path
) -> None:
    settings, root = make("koordinator"), tmp_path / "other"
    boards.build(board, root)
    assert settings.units
    for reason in ("ok", "too-hot", "cdi-missing", "unknown"):
        health = Health(reason == "ok", reason, "why")
        (info,) = koordinator.device_infos(detect(root), settings.units, health)
        assert LABEL.fullmatch(info["model"])
        assert reason == "ok" or ERROR_CODE.fullmatch(info["status"]["errCode"])


def printed(settings: PluginSettings, config: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What the command prints of a node."""
    arguments = ["koordinator-device", "jetson-1", f"--host-root={settings.host_root}", f"--config={config}"]
    assert cli.main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_the_device_is_as_koordlet_would_make_it(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make("koordinator")
    config = Node(tmp_path).config
    device = printed(settings, config, capsys)
    assert (device["apiVersion"], device["kind"]) == ("scheduling.koordinator.sh/v1alpha1", "Device")
    assert device["metadata"] == {
        "name": "jetson-1",
        "labels": {
            "app.kubernetes.io/managed-by": "jetson-k3s",
            "node.koordinator.sh/gpu-vendor": "nvidia",
            "node.koordinator.sh/gpu-model": "Jetson-Orin-Nano-8GB",
        },
    }
    assert device["spec"]["devices"] == [{
        "type": "gpu", "id": "igpu0", "minor": 0, "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
            "koordinator.sh/gpu.shared": "100", "koordinator.sh/gpu-memory": "4Gi",
        },
    }]  # fmt: skip
    dead = settings._replace(host_root=tmp_path / "dead")
    boards.build(boards.load()["orinnano-jp6"], dead.host_root, state="dead")
    assert printed(dead, config, capsys)["spec"]["devices"][0]["health"] is False


def test_device_of_another_preset_or_of_no_gpu_is_none(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make("hami")
    config = f"--config={Node(tmp_path).config}"
    assert cli.main(["koordinator-device", "a", f"--host-root={settings.host_root}", config]) == 2
    assert "`sharing.units` and `preset: koordinator` is needed" in capsys.readouterr().err
    make("koordinator")
    (tmp_path / "empty").mkdir()
    assert cli.main(["koordinator-device", "a", f"--host-root={tmp_path / 'empty'}", config]) == 1
    assert capsys.readouterr().out == ""


async def test_no_file_with_other_presets_or_without_the_directory(make: Make) -> None:
    settings = make("hami")
    place = settings.host_root / "var/run/koordlet"
    await watched(settings).observe()
    assert not list(place.iterdir())
    place.rmdir()
    await watched(make("koordinator")).observe()
    assert not place.exists()


async def test_a_directory_that_cannot_be_written_is_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make("koordinator")
    (settings.host_root / "var/run/koordlet/xpu-device-infos").write_text("no directory")
    watch = watched(settings)
    await watch.observe()
    await watch.observe()
    assert [text for text in caplog.messages if "koordlet" in text] == [
        "koordlet has no GPU: [Errno 17] File exists: "
        f"'{settings.host_root}/var/run/koordlet/xpu-device-infos'"
    ]
    assert watch.health and watch.health.healthy


def test_koordlet_never_finds_an_incomplete_file(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rejects all files of its directory then."""
    root = make("koordinator").host_root
    koordinator.write(root, [])
    directory = root / "var/run/koordlet/xpu-device-infos"
    seen: list[list[str]] = []
    monkeypatch.setattr("os.fsync", lambda _file: seen.append([path.name for path in directory.iterdir()]))
    koordinator.write(root, [{"a": 1}])
    koordinator.write(root, [{"a": 1}])  # nothing new
    assert seen == [["tegra-device-plugin.json"]] * 2  # the file and its directory are synced
    assert [path.name for path in directory.parent.iterdir()] == ["xpu-device-infos"]
