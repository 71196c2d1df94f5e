# SPDX-License-Identifier: Apache-2.0
"""Where the boards get the device plugin's image from: decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release

DEFAULT_NAME = "tegra-device-plugin"
Source = Literal["registry", "bundle", "built"]


class Image(NamedTuple):
    """The image of the boards with one architecture."""

    source: Source
    """`registry`: each board pulls it. `bundle`: a file has it. `built`: site.yml builds it here."""
    name: str
    identity: str
    """A new one renews the pods: the digest of a registry's image, another's id; '' if not built yet."""
    archive: str
    """The name of the file that has it, in the bundle or in dist/."""


def archive_name(arch: str) -> str:
    """The name of the file with the image, for a board with this `uname -m`."""
    return f"tegra-device-plugin-{board_release.architecture(arch)}.tar.gz"


def source_of(configured: str, bundle: Mapping[str, Any]) -> Source:
    """Where the image comes from.

    `configured` is gpu_device_plugin_image, `bundle` what the module bundle_info has found.
    """
    if configured:
        return "registry"
    return "bundle" if bundle["indexed"] else "built"


def image_of(configured: str, bundle: Mapping[str, Any], arch: str) -> Image:
    """The image for a board with this `uname -m`."""
    source, archive = source_of(configured, bundle), archive_name(arch)
    if source == "registry":
        return Image(source, configured, configured.rpartition("@")[2], archive)
    images: dict[str, str] = bundle["files"].get(archive, {}).get("images") or {}
    name = bundle["versions"].get("plugin_image") or next(iter(images), DEFAULT_NAME)
    return Image(source, name, images.get(name, ""), archive)


def unbuilt(configured: str, bundle: Mapping[str, Any], archs: list[str]) -> list[str]:
    """Architectures of these boards for which the image has to be built first."""
    if source_of(configured, bundle) != "built":
        return []
    missing = {arch for arch in archs if archive_name(arch) not in bundle["files"]}
    return sorted(board_release.ARCHITECTURES[arch] for arch in missing)
