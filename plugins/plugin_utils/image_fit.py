# SPDX-License-Identifier: Apache-2.0
"""Whether a board can run an image: its architecture, CUDA and L4T against those of the board.

Pure functions. An image is what module_utils/image_requirements has read in its configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypedDict

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import image_requirements
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import board_release, gpu_job_plan

Facts = Mapping[str, Any]


class Release(NamedTuple):
    """A generation of JetPack: its CUDA, and the base image of docs/pods.md."""

    cuda: int
    base: str


RELEASES = {
    "4": Release(10, "nvcr.io/nvidia/l4t-base:r32.7.1"),
    "5": Release(11, "nvcr.io/nvidia/l4t-cuda:11.4.19-runtime"),
    "6": Release(12, "nvcr.io/nvidia/l4t-cuda:12.6.11-runtime"),
    "7": Release(13, "nvidia/cuda:13.0.1-runtime-ubuntu24.04"),
}
# Lines of L4T by generation of JetPack (docs/compatibility.md).
LINES = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7"}
# From this generation on, boards run the CUDA of servers.
SERVER_CUDA = 7


Problem = dict[str, str]
"""Why a board cannot run an image: a finding of preflight (id, found, expected, fix)."""


class Board(NamedTuple):
    """What is compared of a board."""

    name: str
    architecture: str
    """Go's name, such as arm64."""
    l4t: str
    """'' for a plain host."""

    @property
    def generation(self) -> str:
        """The generation of JetPack, '' if it is not known."""
        return LINES.get(self.l4t.partition(".")[0], "")


def board_of(name: str, facts: Facts) -> Board:
    """A board by its facts."""
    return Board(name, board_release.architecture(facts["arch"]), str(facts.get("l4t") or ""))


def problem(image: Facts, board: Board) -> Problem | None:
    """Why the board cannot run the image: the first reason, None if none is known."""
    name, has = image["name"], image["architecture"]
    if has and has != board.architecture:
        return {
            "id": "image-architecture",
            "found": f"{name} is an image for {has}, and {board.name} is {board.architecture}",
            "expected": f"an image for {board.architecture}",
            "fix": gpu_job_plan.build_for(board.architecture),
        }
    release = RELEASES.get(board.generation)
    if release is None:
        return None
    where = f"{board.name} has L4T {board.l4t} (JetPack {board.generation})"
    fix = f"Build the image from {release.base} (docs/pods.md)."
    line = image["l4t"].partition(".")[0]
    if line and LINES.get(line) != board.generation:
        return {
            "id": "image-l4t",
            "found": f"{name} is an image for L4T {image['l4t']}, and {where}",
            "expected": f"an image for JetPack {board.generation}: the board's libraries are mounted into it",
            "fix": fix,
        }
    if image["cuda"] and int(image["cuda"].partition(".")[0]) > release.cuda:
        return {
            "id": "image-cuda",
            "found": f"{name} has CUDA {image['cuda']}, and {where}, whose driver is of CUDA {release.cuda}",
            "expected": f"CUDA {release.cuda} or older: with a newer one, programs find no GPU and may "
            "run on "
            "the processor",
            "fix": f"{fix} If the image has NVIDIA's cuda-compat, set preflight_accepted: [image-cuda].",
        }
    if image["cuda_arch"] == image_requirements.SBSA and int(board.generation) < SERVER_CUDA:
        return {
            "id": "image-server-cuda",
            "found": f"{name} has the CUDA of Arm servers (NVARCH=sbsa), and {where}",
            "expected": "CUDA for Jetson: libraries for servers lack the code of this GPU",
            "fix": fix,
        }
    return None


def fitting(image: Facts, board: Board) -> str:
    """The sentence about an image that fits."""
    said = [f"{text} {image[key]}" for key, text in (("cuda", "CUDA"), ("l4t", "L4T")) if image[key]]
    known = " and ".join(said) if said else "no CUDA and no L4T named in it"
    where = f"{board.architecture}, L4T {board.l4t}" if board.l4t else board.architecture
    return f"{board.name} ({where}): {image['name']} fits ({image['architecture'] or 'any'}, {known})"


def chosen(images: Iterable[Facts], architecture: str) -> list[Facts]:
    """Of each name the image for an architecture, or another one if there is none for it."""
    found: dict[str, Facts] = {}
    for image in images:
        if image["name"] not in found or image["architecture"] == architecture:
            found[image["name"]] = image
    return [*found.values()]


class Verdict(TypedDict):
    """The answer about a board."""

    fits: bool
    text: str


def verdict(images: Iterable[Facts], name: str, facts: Facts) -> Verdict:
    """Whether a board can run all of the images of an archive, in sentences."""
    board = board_of(name, facts)
    own = chosen(images, board.architecture)
    problems = [found for found in (problem(image, board) for image in own) if found]
    texts = [f"{one['found']}. {one['fix']}" for one in problems]
    return {"fits": not problems, "text": " ".join(texts or [fitting(image, board) for image in own])}


FILTERS = {"image_verdict": verdict}
