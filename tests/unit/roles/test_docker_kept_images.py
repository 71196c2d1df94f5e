# SPDX-License-Identifier: Apache-2.0
"""Which containers keep the bundle's images."""

from types import ModuleType

import pytest

from tests.unit.roles.conftest import Load


@pytest.fixture
def module(load: Load) -> ModuleType:
    return load("nvidia_docker/library/docker_kept_images.py")


@pytest.mark.parametrize(
    ("images", "holders", "missing", "outdated"),
    [
        ({"pause:3.2": "sha256:a"}, [], ["pause:3.2"], []),
        ({"pause:3.2": "sha256:a"}, [("c1", "sha256:a")], [], []),
        ({"plugin:2": "sha256:b"}, [("c1", "sha256:a")], ["plugin:2"], ["c1"]),
        ({}, [("c1", "sha256:a")], [], ["c1"]),
        ({"b": "sha256:b", "a": "sha256:a"}, [], ["a", "b"], []),
    ],
    ids=["first", "kept", "newer", "none", "several"],
)
def test_each_image_has_a_container_and_no_other_image_has(
    module: ModuleType,
    images: dict[str, str],
    holders: list[tuple[str, str]],
    missing: list[str],
    outdated: list[str],
) -> None:
    assert module.plan(images, holders) == (missing, outdated)


def test_reset_takes_away_what_keeps_images(module: ModuleType, load: Load) -> None:
    assert load("k3s_reset/library/k3s_reset.py").KEEPER_LABEL == module.LABEL
