# SPDX-License-Identifier: Apache-2.0
"""The merge of daemon.json keeps what its owner wrote and knows what needs a restart."""

from types import ModuleType
from typing import Any

import pytest

from tests.unit.roles.conftest import Load

PATH = "/usr/bin/nvidia-container-runtime"
WANTED: dict[str, Any] = {
    "default-runtime": "nvidia",
    "runtimes": {"nvidia": {"path": PATH, "runtimeArgs": []}},
}


@pytest.fixture
def module(load: Load) -> ModuleType:
    return load("nvidia_docker/library/docker_daemon_config.py")


def test_unknown_keys_features_and_other_runtimes_are_kept(module: ModuleType) -> None:
    before: dict[str, Any] = {
        "features": {"buildkit": True, "containerd-snapshotter": False},
        "registry-mirrors": ["https://mirror.example"],
        "runtimes": {"kata": {"path": "/usr/bin/kata", "runtimeArgs": ["--x"]}},
        "made-up-by-a-newer-docker": {"a": [1]},
    }
    after = module.merge_config(before, WANTED)
    assert after == {
        **before,
        "default-runtime": "nvidia",
        "runtimes": {**before["runtimes"], **WANTED["runtimes"]},
    }


@pytest.mark.parametrize(
    "runtime",
    [
        {"path": PATH, "runtimeArgs": []},
        {"path": PATH, "args": []},
        {"path": PATH},
        {"path": "nvidia-container-runtime", "args": []},
        {"path": "nvidia-container-runtime", "runtimeArgs": []},
    ],
)
def test_the_same_runtime_in_other_words_is_left_alone(module: ModuleType, runtime: dict[str, Any]) -> None:
    before = {"default-runtime": "nvidia", "runtimes": {"nvidia": runtime}}
    assert module.merge_config(before, WANTED) == before


@pytest.mark.parametrize(
    "runtime",
    [
        {"path": "/opt/nvidia-container-runtime"},
        {"path": PATH, "args": ["--debug"]},
        {"path": "/usr/bin/runc"},
        "odd",
    ],
)
def test_another_runtime_of_that_name_is_replaced(module: ModuleType, runtime: Any) -> None:
    after = module.merge_config({"runtimes": {"nvidia": runtime}}, WANTED)
    assert after["runtimes"]["nvidia"] == {"path": PATH, "runtimeArgs": []}


def test_merging_twice_changes_nothing_more(module: ModuleType) -> None:
    once = module.merge_config({"debug": True}, WANTED)
    assert module.merge_config(once, WANTED) == once


def test_merge_does_not_touch_its_arguments(module: ModuleType) -> None:
    before: dict[str, Any] = {"runtimes": {"nvidia": {"path": "/other"}}}
    module.merge_config(before, WANTED)
    assert before == {"runtimes": {"nvidia": {"path": "/other"}}}
    assert WANTED["runtimes"] == {"nvidia": {"path": PATH, "runtimeArgs": []}}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"debug": True}, {"debug": True}, "none"),
        ({}, WANTED, "reload"),
        ({"live-restore": False}, {"live-restore": True}, "reload"),
        ({}, {"data-root": "/mnt"}, "restart"),
        ({"debug": True, "exec-opts": ["a"]}, {"debug": False}, "restart"),
    ],
)
def test_activation_is_a_reload_when_every_changed_key_is_reloadable(
    module: ModuleType, before: dict[str, Any], after: dict[str, Any], expected: str
) -> None:
    assert module.activation(before, after) == expected


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_empty_file_is_an_empty_configuration(module: ModuleType, text: str) -> None:
    assert module.parse(text, "daemon.json") == {}


@pytest.mark.parametrize(
    ("text", "words"), [('{\n"a": 1\n"b": 2}', "line 3 column 1"), ("[]", "JSON object")]
)
def test_broken_file_is_refused_with_the_place(module: ModuleType, text: str, words: str) -> None:
    with pytest.raises(module.ConfigError, match=words):
        module.parse(text, "/etc/docker/daemon.json")
