# SPDX-License-Identifier: Apache-2.0
"""The stand-in for nvidia-container-runtime keeps the contract of NVIDIA's toolkit, release by release."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.nvidia_runtime import runtime
from tests.lab.nvidia_runtime.runtime import Injection, Refused, Settings, Toolkit

NEWEST = Toolkit(honours_keys=True, refuses_other_ids=True)


def spec(*env: str, **more: Any) -> dict[str, Any]:
    """Return the part of a container's config.json that matters here."""
    return {"process": {"env": list(env)}, **more}


@pytest.mark.parametrize(
    ("request_", "named"),
    [("tegra", "tegra"), ("1", "1"), ("all,GPU-1", "GPU-1"), ("0,", ""), ("none,0", "none")],
)
def test_unknown_ids_are_refused_in_the_toolkits_words(request_: str, named: str) -> None:
    with pytest.raises(Refused) as caught:
        runtime.wants_gpu(request_, NEWEST)
    assert str(caught.value) == (
        'failed to generate CDI spec for mode "csv": failed to construct device spec generators: '
        f"unsupported device id: {named}"
    )


@pytest.mark.parametrize(
    ("version", "honours", "refuses"),
    [
        ("1.0.5", False, False),
        ("1.7.0", True, False),
        ("1.11.0", False, False),
        ("1.16.2", False, False),
        ("1.17.9", False, False),
        ("1.18.0-rc.1\n", True, False),
        ("1.19.0\n", True, True),
        ("1.20.0", True, True),
    ],
)
def test_each_release_does_what_its_sources_say(version: str, honours: bool, refuses: bool) -> None:
    assert runtime.toolkit(version) == Toolkit(honours, refuses)


@pytest.mark.parametrize("version", ["", "newest", "0.9"])
def test_a_release_that_there_is_not_is_refused(version: str) -> None:
    with pytest.raises(Refused, match="no release of the toolkit"):
        runtime.toolkit(version)


@pytest.mark.parametrize(("version", "gets"), [("1.11.0", True), ("1.17.9", True), ("1.18.0", False)])
def test_strict_mode_keeps_the_gpu_from_who_has_not_asked_from_one_release_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, gets: bool
) -> None:
    for name, text in {
        "VERSION": f"{version}\n",
        "CONFIG": "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
    }.items():
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(runtime, name, path)
    monkeypatch.setattr(runtime, "injection", lambda: Injection(devices=["/dev/null"]))
    container = spec("NVIDIA_VISIBLE_DEVICES=all")
    (tmp_path / "config.json").write_text(json.dumps(container))
    assert ("injected=/dev/null" in runtime.edit_container(tmp_path)) is gets


def test_the_last_of_two_requests_counts() -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=void", "PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all")
    assert runtime.requested(spec(*env), Settings()) == "all"


def test_an_unprivileged_containers_environment_can_be_switched_off() -> None:
    settings = Settings(accept_env_when_unprivileged=False)
    container = spec("NVIDIA_VISIBLE_DEVICES=all")
    assert runtime.requested(container, settings) is None
    container["process"]["capabilities"] = {"bounding": ["CAP_SYS_ADMIN"]}
    assert runtime.requested(container, settings) == "all"


def test_volume_mounts_count_only_when_switched_on() -> None:
    mounts = [
        {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"},
        {"source": "/dev/zero", "destination": "/var/run/nvidia-container-devices/7"},
        {"source": "/dev/null", "destination": "/dev/elsewhere"},
    ]
    container = spec("NVIDIA_VISIBLE_DEVICES=void", mounts=mounts)
    assert runtime.requested(container, Settings()) == "void"
    assert runtime.requested(container, Settings(accept_volume_mounts=True)) == "0"


def test_settings_come_from_the_toolkits_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert Settings.read(path) == Settings(accept_env_when_unprivileged=True, accept_volume_mounts=False)
    path.write_text(
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
        '[nvidia-container-runtime]\nmode = "auto"\n'
    )
    assert Settings.read(path) == Settings(accept_env_when_unprivileged=False, accept_volume_mounts=True)
    path.write_text("accept = = true\n")
    with pytest.raises(Refused, match=r"config\.toml.*line 1"):
        Settings.read(path)


def test_csv_lists_are_matched_with_what_the_board_has(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1.1").touch()
    (tmp_path / "libnvos.so").touch()
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.1.1")
    (tmp_path / "firmware").mkdir()
    (tmp_path / "devices.csv").write_text(
        f"dev, /dev/null\n dev ,/dev/zero \ndev, /dev/no-such-node\n\ndev, {tmp_path}/libnvos.so\nnonsense\n"
        "spell, /dev/full\ndev, relative\n"
    )
    (tmp_path / "drivers.csv").write_text(
        f"lib, {tmp_path}/lib*.so\nsym, {tmp_path}/libcuda.so\ndir, {tmp_path}/firmware\ndev, /dev/null\n"
    )
    (tmp_path / "ignored.csv").write_text("dev, /dev/full\n")
    found = runtime.injection(tmp_path)
    assert found.devices == ["/dev/null", "/dev/zero"]
    assert found.mounts == [f"{tmp_path}/{name}" for name in ("libcuda.so", "libnvos.so", "firmware")]
    assert found.absent == ["/dev/no-such-node"]


def test_what_the_container_has_already_is_left_alone(tmp_path: Path) -> None:
    given = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o600}
    mount = {"destination": str(tmp_path), "source": "/elsewhere", "type": "bind"}
    container = spec(linux={"devices": [dict(given)]}, mounts=[dict(mount)])
    assert runtime.inject(container, Injection(devices=["/dev/null"], mounts=[str(tmp_path)])) == []
    assert container["linux"]["devices"] == [given]
    assert container["mounts"] == [mount]
