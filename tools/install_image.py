# SPDX-License-Identifier: Apache-2.0
"""Where the plugin's image comes from in a run of install.sh, said before the run.

The playbooks decide it in the same order (plugins/plugin_utils/plugin_image.py). Runs in .venv, with Python
3.10 and newer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from images.arm64 import builder
from tools.front_door import CHECKOUT, RefusedError

SETTING = "gpu_device_plugin_build_on_board"
BUILDER_L4T = 36
"""JetPack 6: older ones have no Python 3.10, which builds the image."""
TRUE = ("true", "yes", "on", "1")
DECIDES = "That board then decides what runs on all boards that get this image"
MISSING = "this computer has neither Docker nor Podman that answers"


@dataclass(frozen=True)
class Image:
    """Where the image comes from, for people. `offered`: the board builds it only if the person agrees."""

    lines: tuple[str, ...]
    on_board: bool = False
    offered: bool = False


def is_current(archive: str) -> bool:
    """Whether dist/ has this image, not older than its sources."""
    sys.path.append(str(CHECKOUT / ".collections"))
    from ansible_collections.jetson_k3s.cluster.plugins.module_utils import (  # noqa: PLC0415 - found there
        built_images,
    )

    return archive in built_images.current(str(CHECKOUT / "dist"))


def ways(l4t: int) -> str:
    """What a person can do on a computer that cannot build the image."""
    board = (
        "let the board build it (add --build-on-board)"
        if l4t >= BUILDER_L4T
        else "let a board with JetPack 6 or newer build it, which this one cannot"
    )
    return (
        f"The plugin's image has to be built, and {MISSING}. Do one of these: install Docker or Podman; "
        f"{board}; put the image of a release into dist/, or set gpu_device_plugin_image to one in a "
        "registry (docs/install.md)"
    )


def on_board(l4t: int) -> Image:
    """The image that the board builds. Raises RefusedError if that board cannot."""
    if l4t < BUILDER_L4T:
        raise RefusedError(
            "--build-on-board: the board has an older JetPack than 6, whose Python is too old to build the "
            "plugin's image. Install Docker or Podman on this computer, and leave it out. Nothing was done"
        )
    return Image(("built on the board, for some minutes, and put into dist/ here.", DECIDES), on_board=True)


def image_of(
    settings: Mapping[str, Any], machine: str, l4t: int, *, local: bool, chosen: bool
) -> Image | None:
    """Where the image comes from; None if it has to be built, and cannot be built on this computer.

    `settings` are the board's variables, `machine` its `uname -m`, `chosen` is --build-on-board.
    """
    archive = f"tegra-device-plugin-{'amd64' if machine == 'x86_64' else 'arm64'}.tar.gz"
    if settings.get("jetson_k3s_bundle"):
        return Image(("that of the bundle",))
    if settings.get("gpu_device_plugin_image"):
        return Image((f"pulled by the board: {settings['gpu_device_plugin_image']}",))
    if is_current(archive):
        return Image((f"dist/{archive}",))
    if not local and (chosen or str(settings.get(SETTING)).lower() in TRUE):
        return on_board(l4t)
    tool = builder.available()
    if tool:
        return Image((f"built on this computer with {tool}, the first time for some minutes",))
    return None


def offer(l4t: int, *, may_ask: bool) -> Image:
    """The image that the board builds if the person agrees. Raises RefusedError without a terminal."""
    if not may_ask or l4t < BUILDER_L4T:
        raise RefusedError(f"{ways(l4t)}. Nothing was done")
    return Image(
        (f"has to be built, and {MISSING}.", "If you agree, the board builds it, for some minutes.", DECIDES),
        on_board=True,
        offered=True,
    )
