# SPDX-License-Identifier: Apache-2.0
"""The lab's simulated nvidia-container-runtime does what each release of NVIDIA's toolkit does."""

import json
from pathlib import Path

import pytest

from tests.lab.nvidia_runtime import runtime
from tests.lab.nvidia_runtime.runtime import Refused, Toolkit

NEWEST = Toolkit(honours_keys=True, refuses_other_ids=True)


@pytest.mark.parametrize(
    ("request_", "named"),
    [("tegra", "tegra"), ("1", "1"), ("all,GPU-1", "GPU-1"), ("0,", ""), ("none,0", "none")],
)
def test_unknown_ids_are_rejected_with_the_toolkits_message(request_: str, named: str) -> None:
    with pytest.raises(Refused) as caught:
        runtime.wants_gpu(request_, NEWEST)
    assert str(caught.value) == (
        'failed to generate CDI spec for mode "csv": failed to construct device spec generators: '
        f"unsupported device id: {named}"
    )


@pytest.mark.parametrize("request_", [None, "", "void", "none"])
def test_a_container_without_a_request_gets_nothing(request_: str | None) -> None:
    assert not runtime.wants_gpu(request_, NEWEST)
    assert runtime.wants_gpu("0,all", NEWEST)


@pytest.mark.parametrize(
    ("version", "honours", "refuses"),
    [
        ("1.0.5", False, False),
        ("1.7.0", True, False),
        ("1.11.0", False, False),
        ("1.17.9", False, False),
        ("1.18.0-rc.1\n", True, False),
        ("1.19.0\n", True, True),
        ("1.20.0", True, True),
    ],
)
def test_each_release_is_simulated_after_its_sources(version: str, honours: bool, refuses: bool) -> None:
    assert runtime.toolkit(version) == Toolkit(honours, refuses)


@pytest.mark.parametrize(("version", "gets"), [("1.11.0", True), ("1.17.9", True), ("1.18.0", False)])
def test_strict_mode_works_from_one_release_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, gets: bool
) -> None:
    for name, text in {
        "VERSION": f"{version}\n",
        "CONFIG": "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
    }.items():
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(runtime, name, path)
    monkeypatch.setattr(runtime, "injection", lambda: (["/dev/null"], []))
    container = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}
    (tmp_path / "config.json").write_text(json.dumps(container))
    assert ("injected=/dev/null" in runtime.edit_container(tmp_path)) is gets


def test_on_a_plain_host_there_is_no_toolkit_and_a_container_is_clamped_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "VERSION").write_text("none\n")
    monkeypatch.setattr(runtime, "VERSION", tmp_path / "VERSION")
    monkeypatch.setenv("CLAMP_ONLY", "1")
    container = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}
    (tmp_path / "config.json").write_text(json.dumps(container))
    assert "injected=nothing" in runtime.edit_container(tmp_path)
