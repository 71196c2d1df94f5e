# SPDX-License-Identifier: Apache-2.0
"""What role image_supply puts into a registry, and what it removes: decisions from facts and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_release,
    board_variables,
    host_kinds,
)


class Archive(TypedDict):
    """A file of the bundle with images."""

    name: str
    images: list[str]
    """Their ids."""


class Plan(TypedDict):
    """The content of the registry."""

    archives: list[Archive]
    images: list[str]
    described: list[Mapping[str, Any]]
    """Images of the user, as the bundle's index has them."""


class Removal(TypedDict):
    """Parts of the role's work that the inventory has no more."""

    registry: bool
    """Whether the board's registry is removed."""
    certificates: list[str]
    """Registries, as HOST:PORT, that the board trusts no longer."""


def serves_docker(boards: Iterable[str], hostvars: board_variables.Hostvars, host: str) -> bool:
    """Whether a host whose pods Docker runs gets its images from this host, which may be that host."""
    return any(
        variables.get("image_supply_host") == host
        and variables.get("k3s_container_runtime", host_kinds.DOCKER) == host_kinds.DOCKER
        for variables in (hostvars[board] for board in [host, *boards])
    )


def plan(
    bundle: Mapping[str, Any], arch: str, user_images: Iterable[Mapping[str, Any]], with_archives: bool
) -> Plan:
    """Images of the user, and with the archives all others of the bundle for boards with this `uname -m`.

    `bundle` is what bundle_info has found. Only Docker pulls images of archives: K3s itself imports archives
    into containerd.
    """
    suffix = f"-{board_release.architecture(arch)}.tar.gz"
    archives: list[Archive] = [
        {"name": name, "images": list(file["images"].values())}
        for name, file in bundle["files"].items()
        if with_archives and name.endswith(suffix) and file.get("images")
    ]
    described = list(user_images)
    ids = {image for archive in archives for image in archive["images"]}
    return {
        "archives": archives,
        "images": sorted(ids | {image["id"] for image in described}),
        "described": described,
    }


def missing(archives: Iterable[Archive], images: Iterable[str]) -> list[Archive]:
    """The archives with images that the registry lacks."""
    lacking = set(images)
    return [archive for archive in archives if lacking & set(archive["images"])]


def removal(present: Mapping[str, Any], kept: list[str], host: str, supply_host: str) -> Removal:
    """What is removed from a board. `present` are its facts, `kept` the registries that it goes on trusting.

    Without any, a board also loses its own registry.
    """
    return {
        "registry": bool(present["installed"]) and (not kept or host != supply_host),
        "certificates": [name for name in present["trusted"] if name not in kept],
    }


FILTERS = {
    "image_supply_missing": missing,
    "image_supply_plan": plan,
    "image_supply_removal": removal,
    "image_supply_serves_docker": serves_docker,
}
