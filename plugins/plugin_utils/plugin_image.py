# SPDX-License-Identifier: Apache-2.0
"""Where the boards get the device plugin's image from: decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release, board_variables

UNABLE = ("0", "4", "5")
"""Generations of JetPack whose Python is older than 3.10, which images/arm64/build.py needs; 0 is unknown."""
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


def lacks_wheels(
    bundle: Mapping[str, Any], boards: Iterable[str], hostvars: board_variables.Hostvars
) -> bool:
    """Whether a board gets jtop, and neither a bundle nor an earlier run has the wheels of jetson-stats."""
    if bundle["indexed"] or "jtop" in bundle["versions"]:
        return False
    wanted = board_variables.values_of(boards, hostvars, "gpu_device_plugin_jtop")
    return any(boolean(value, strict=False) for value in wanted.values())


def builders(
    archs: Iterable[str], boards: Iterable[str], hostvars: board_variables.Hostvars
) -> dict[str, str]:
    """{architecture: the board that builds its image}, for those that a board can build for.

    Where Docker runs the pods, it is installed before the build. A board that has it already goes first.
    """
    facts = board_variables.facts_of(boards, hostvars)
    runtimes = board_variables.values_of(boards, hostvars, "k3s_container_runtime")
    able = [
        board
        for board in facts
        if board_release.generation(facts[board]["jetpack"]) not in UNABLE
        if facts[board]["docker"]["running"] or runtimes.get(board, "docker") == "docker"
    ]
    able.sort(key=lambda board: not facts[board]["docker"]["running"])
    found = {board_release.architecture(facts[board]["arch"]): board for board in reversed(able)}
    return {arch: found[arch] for arch in archs if arch in found}


def wrong_archive(state: Mapping[str, Any]) -> str:
    """Why an archive that a board has sent is not the plugin's image, '' if it is.

    `state` is that of the module bundle_info. An image with another name could replace one that pods use.
    """
    if state.get("error"):
        return str(state["error"])
    names = sorted(state.get("images", {}))
    if len(names) == 1 and names[0].partition(":")[0] == DEFAULT_NAME:
        return ""
    return f"it has {', '.join(names) or 'no image with a name'}, and not one image {DEFAULT_NAME} alone"
