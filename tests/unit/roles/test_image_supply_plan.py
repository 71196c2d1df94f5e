# SPDX-License-Identifier: Apache-2.0
"""What role image_supply decides: the registry's images, and what is removed."""

from __future__ import annotations

import pytest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import image_supply as planning

from tests.unit.roles.places import Data

BUNDLE: Data = {
    "files": {
        "a-arm64.tar.gz": {"images": {"a:1": "sha256:2", "b:1": "sha256:1"}},
        "b-arm64.tar.gz": {"images": {"b:1": "sha256:1"}},
        "c-amd64.tar.gz": {"images": {"c:1": "sha256:3"}},
        "debs-arm64.tar": {"packages": {}},
        "empty-arm64.tar.gz": {"images": None},
        "k3s-arm64": {},
    }
}


def test_the_registry_has_the_images_for_the_boards_architecture() -> None:
    planned = planning.plan(BUNDLE, "aarch64", [], True)
    assert [archive["name"] for archive in planned["archives"]] == ["a-arm64.tar.gz", "b-arm64.tar.gz"]
    assert planned["images"] == ["sha256:1", "sha256:2"]
    assert planning.plan(BUNDLE, "x86_64", [], True)["images"] == ["sha256:3"]
    assert planning.plan(BUNDLE, "armv7l", [], True) == {"archives": [], "images": [], "described": []}


def test_registry_without_a_host_with_docker_has_only_images_of_the_user() -> None:
    images = [{"id": "sha256:user"}]
    assert planning.plan(BUNDLE, "aarch64", images, False) == {
        "archives": [],
        "images": ["sha256:user"],
        "described": images,
    }
    assert planning.plan(BUNDLE, "aarch64", images, True)["images"] == ["sha256:1", "sha256:2", "sha256:user"]


CONTAINED: Data = {"image_supply_host": "a", "k3s_container_runtime": "containerd"}


@pytest.mark.parametrize(
    ("hosts", "serves"),
    [
        ({"a": {"image_supply_host": "a"}}, True),
        ({"a": CONTAINED, "b": CONTAINED}, False),
        ({"a": CONTAINED, "b": {"image_supply_host": "a", "k3s_container_runtime": "docker"}}, True),
        # They get their images elsewhere.
        ({"a": CONTAINED, "b": {}, "c": {"image_supply_host": "c"}}, False),
    ],
)
def test_registry_serves_docker_where_a_host_of_the_site_has_it(hosts: dict[str, Data], serves: bool) -> None:
    assert planning.serves_docker(hosts, hosts, "a") is serves


@pytest.mark.parametrize(
    ("images", "archives"),
    [
        ([], []),
        (["sha256:2"], ["a-arm64.tar.gz"]),
        (["sha256:1"], ["a-arm64.tar.gz", "b-arm64.tar.gz"]),
        (["sha256:9"], []),
    ],
)
def test_only_archives_with_missing_images_are_copied(images: list[str], archives: list[str]) -> None:
    planned = planning.plan(BUNDLE, "aarch64", [], True)
    assert [one["name"] for one in planning.missing(planned["archives"], images)] == archives


@pytest.mark.parametrize(
    ("installed", "kept", "host", "registry", "certificates"),
    [
        # The board that supplies the images keeps its registry, and the trust in it.
        (True, ["a:5443"], "a", False, ["old:5443"]),
        (False, ["a:5443"], "b", False, ["old:5443"]),
        # Another board supplies them now.
        (True, ["a:5443"], "b", True, ["old:5443"]),
        # None does.
        (True, [], "a", True, ["a:5443", "old:5443"]),
        (False, [], "b", False, ["a:5443", "old:5443"]),
    ],
)
def test_a_registry_that_is_not_configured_any_more_is_removed(
    installed: bool, kept: list[str], host: str, registry: bool, certificates: list[str]
) -> None:
    present = {"installed": installed, "trusted": ["a:5443", "old:5443"]}
    found = planning.removal(present, kept, host, "a")
    assert found == {"registry": registry, "certificates": certificates}
