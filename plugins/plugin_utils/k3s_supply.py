# SPDX-License-Identifier: Apache-2.0
"""Where a board gets the binary of K3s from. Pure functions for role k3s."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypedDict
from urllib.parse import quote, unquote, urlsplit

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release, k3s_version

# K3s' releases call the binary for amd64 just k3s.
RELEASED = {"arm64": "k3s-arm64", "amd64": "k3s"}


class Settings(TypedDict):
    """What the inventory says."""

    version: str
    """k3s_version, '' for none."""
    sha256: dict[str, str]
    """k3s_sha256, by architecture."""
    release_url: str
    """k3s_release_url, which may have a password."""


class Supply(TypedDict):
    """What the tasks do. It is shown, so it has no secret."""

    source: Literal["bundle", "download"]
    version: str
    file: str
    """Path of the binary in the bundle."""
    url: str
    """Address of the binary, without a password."""
    checksums: str
    """Address of the release's own checksums."""
    sha256: str
    """Of the binary; '' for the one in the release's own checksums."""


class Login(TypedDict):
    """User and password of a mirror, '' for none."""

    username: str
    password: str


def supply(bundle: Mapping[str, Any], arch: str, settings: Settings) -> Supply:
    """Where a board with this `uname -m` gets K3s from. `bundle` is what the module bundle_info has found."""
    name, version = board_release.architecture(arch), k3s_version.wanted_version(bundle, settings["version"])
    release = re.sub(r"(?<=://)[^/]*@", "", settings["release_url"]) + "/" + quote(version)
    bundled, file = bundle["indexed"], f"k3s-{name}"
    return {
        "source": "bundle" if bundled else "download",
        "version": version,
        "file": f"{bundle['path']}/{file}" if bundled else "",
        "url": f"{release}/{RELEASED[name]}",
        "checksums": f"{release}/sha256sum-{name}.txt",
        "sha256": bundle["files"][file]["sha256"] if bundled else settings["sha256"].get(name) or "",
    }


def login(release_url: str) -> Login:
    """User and password in the address of a mirror."""
    url = urlsplit(release_url)
    return {"username": unquote(url.username or ""), "password": unquote(url.password or "")}


def missing_images(bundled: Mapping[str, Any], listed: list[str]) -> list[str]:
    """Images of a bundle's file that containerd lacks. `listed` are its names by `ctr images ls`."""
    # containerd writes Docker's own registry out.
    known = {re.sub(r"^docker[.]io/(library/)?", "", name) for name in listed}
    return [name for name in bundled["images"] if name not in known]


FILTERS = {"k3s_missing_images": missing_images, "k3s_release_login": login, "k3s_supply": supply}
