# SPDX-License-Identifier: Apache-2.0
"""Images of the user in the bundle: where they come from, and which a board gets."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible_collections.jetson_k3s.cluster.plugins.module_utils import image_manifest
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_release,
    board_variables,
    gpu_job_image,
    image_fit,
    nvidia_docker,
)

Entry = Mapping[str, Any]
"""An image of the bundle's index (module bundle_images)."""
NAME = "bundle_images"
KEPT = "bundle_images"
"""The name for which module docker_kept_images keeps the images."""


class Blob(TypedDict):
    """A file of an image."""

    digest: str
    size: int


class Plan(TypedDict):
    """What a board has to have, and what it lacks."""

    images: list[Entry]
    lacking: list[Entry]
    bundled: dict[str, dict[str, str]]
    """Those of `images` in the form of a file of the bundle, as the engine knows them."""
    due: bool
    """Whether the role has work on the board."""
    pull_seconds: int
    """What the largest image may take on the network of the site."""


def source(image: Any) -> Any:
    """The absolute path of an archive, or the name of an image in a registry. Of a list, of each of them."""
    if isinstance(image, list):
        return [source(one) for one in image]
    return gpu_job_image.archive_path(str(image)) or str(image)


def sources(
    own: Iterable[str], boards: Iterable[str], hostvars: board_variables.Hostvars, name: str = NAME
) -> list[Any]:
    """The images of a bundle: those of this computer's setting, and of each board's."""
    lists = [list(own), *board_variables.values_of(boards, hostvars, name).values()]
    return source(list(dict.fromkeys(str(one) for images in lists for one in images)))  # type: ignore[no-any-return]


def of_setting(setting: Iterable[str], bundle: Mapping[str, Any]) -> dict[str, list[Entry]]:
    """{entry of bundle_images: the bundle's images for it}. An archive is known by its file name."""
    return {
        str(one): [
            image for image in bundle["images"] if image["source"] in (str(one), posixpath.basename(str(one)))
        ]
        for one in setting
    }


def wanted(setting: Iterable[str], bundle: Mapping[str, Any], arch: str) -> list[Entry]:
    """The images of the bundle that a board with this `uname -m` gets."""
    architecture = board_release.architecture(arch)
    found = {
        image["name"]: image
        for images in of_setting(setting, bundle).values()
        for image in images
        if image["architecture"] == architecture
    }
    return [*found.values()]


def blobs(images: Iterable[Entry], manifests: bool = False, present: Iterable[str] = ()) -> list[Blob]:
    """The files of images, each once, without the layers that are `present` there."""
    there = set(present)
    found: dict[str, Blob] = {}
    for image in images:
        for blob in [image["config"], *image["layers"], *([image["manifest"]] if manifests else [])]:
            if blob["digest"] not in there:
                found[blob["digest"]] = {"digest": blob["digest"], "size": blob["size"]}
    return [*found.values()]


def bundled(images: Iterable[Entry], runtime: str) -> dict[str, dict[str, str]]:
    """Ids and identities of images by name, as module bundle_info has them of an archive.

    To containerd, an image is the digest of its manifest.
    """
    kept = list(images)
    if runtime == "containerd":
        return {"images": {image["name"]: image["manifest"]["digest"] for image in kept}, "contents": {}}
    return {
        "images": {image["name"]: image["id"] for image in kept},
        "contents": {image["name"]: image["content"] for image in kept},
    }


PULL_SECONDS, SLOW = 900, 1_000_000
"""A pull may take this long, and longer for an image that takes more at this number of bytes a second."""


def plan(facts: Mapping[str, Any], bundle: Mapping[str, Any], setting: Iterable[str], runtime: str) -> Plan:
    """What a board lacks, by its facts. Facts have no images of containerd: a task asks for them later."""
    images = wanted(setting, bundle, facts["arch"])
    described, docker = bundled(images, runtime), facts["docker"]
    lacking = nvidia_docker.lacking_images(described, docker) if runtime == "docker" else []
    kept = nvidia_docker.keeps_images(described, docker, KEPT)
    size = max([sum(layer["size"] for layer in image["layers"]) for image in images], default=0)
    return {
        "images": images,
        "lacking": [image for image in images if image["name"] in lacking],
        "bundled": described,
        "due": bool(lacking) or not kept
        if runtime == "docker"
        else bool(images) or bool(facts["k3s"].get("kept_images")),
        "pull_seconds": max(PULL_SECONDS, size // SLOW),
    }


def space(
    facts: Mapping[str, Any], bundle: Mapping[str, Any], setting: Iterable[str], runtime: str, supplied: bool
) -> dict[str, int]:
    """Bytes that the images of a board take at least: `stored` by its engine, and `sent` on their way there.

    An engine unpacks layers, so it needs no less than they have. Later versions share layers with earlier
    ones, and facts do not name those: on a board that keeps images already, nothing is counted. Images that
    the registry of the site has supplied are not sent from this computer.
    """
    planned = plan(facts, bundle, setting, runtime)
    missing = planned["images"] if runtime == "containerd" else planned["lacking"]
    if keeps(facts) or not missing:
        return {"stored": 0, "sent": 0}
    sizes = [sum(blob["size"] for blob in blobs([image])) for image in missing]
    stored = sum(blob["size"] for blob in blobs(missing))
    return {"stored": stored, "sent": 0 if supplied else max(sizes)}


def keeps(facts: Mapping[str, Any]) -> bool:
    """Whether an earlier run has loaded images on the board; its facts may be of any form."""
    docker, k3s = facts.get("docker"), facts.get("k3s")
    kept = docker.get("kept") if isinstance(docker, Mapping) else None
    of_docker = isinstance(kept, Mapping) and KEPT in kept
    return of_docker or (isinstance(k3s, Mapping) and bool(k3s.get("kept_images")))


def named(images: Iterable[Entry], names: Iterable[str]) -> list[Entry]:
    """Those of the images that have one of these names, which are those of containerd."""
    known = set(names)
    return [image for image in images if image_manifest.full_name(image["name"]) in known]


def findings(
    facts: Mapping[str, Any], bundle: Mapping[str, Any], setting: Iterable[str], host: str
) -> list[dict[str, str]]:
    """Images of the setting that a board could not get, or not run. `facts` are the board's."""
    board, found = image_fit.board_of(host, facts), []
    for name, images in of_setting(setting, bundle).items():
        if not images:
            has = ", ".join(sorted({one["source"] for one in bundle["images"]})) or "none"
            found.append(
                {
                    "id": "bundle-images",
                    "found": f"bundle_images has {name}, and the bundle's images are {has}"
                    if bundle["indexed"]
                    else f"bundle_images has {name}, and jetson_k3s_bundle names no bundle",
                    "expected": "a bundle that was made with this setting",
                    "fix": "Make the bundle again with this inventory: playbooks/bundle.yml -i INVENTORY "
                    "(docs/own-images.md). Or correct bundle_images.",
                }
            )
        for image in image_fit.chosen(images, board.architecture):
            problem = image_fit.problem(image, board)
            found += [problem] if problem else []
    files = bundle["files"]
    for blob in blobs(wanted(setting, bundle, facts["arch"]), manifests=True):
        file = f"images/{blob['digest'].partition(':')[2]}"
        error = files.get(file, {"error": "not listed in SHA256SUMS"})["error"]
        if error is not None:
            found.append(
                {
                    "id": "bundle-file",
                    "found": f"{file}: {error}",
                    "expected": "every file as SHA256SUMS says",
                    "fix": f"Copy or build the bundle {bundle['path']} again; `sha256sum -c SHA256SUMS` "
                    "inside it must pass.",
                }
            )
    return found


def supplied(
    bundle: Mapping[str, Any], boards: Iterable[str], hostvars: board_variables.Hostvars, host: str
) -> list[Entry]:
    """The images of the user for all boards that get their images from this host."""
    if not bundle.get("images"):
        return []
    known = {board: hostvars[board] for board in boards}
    found = {
        (image["name"], image["architecture"]): image
        for variables in known.values()
        if variables.get("image_supply_host") == host
        for images in of_setting(variables.get(NAME) or [], bundle).values()
        for image in images
    }
    return [found[key] for key in sorted(found)]


def lines(images: Iterable[Entry]) -> list[str]:
    """The images of a bundle, for a person: the name is that for a pod."""
    found = [*images]
    total = sum(blob["size"] for blob in blobs(found))
    return [
        *(f"{one['name']} for {one['architecture']}, of {one['source']}" for one in found),
        f"{total / 1e6:.0f} MB in all, each layer once",
    ]


FILTERS = {
    "image_source": source,
    "user_image_blobs": blobs,
    "user_image_lines": lines,
    "user_image_sources": sources,
    "user_images_named": named,
    "user_images_plan": plan,
    "user_images_supplied": supplied,
}
