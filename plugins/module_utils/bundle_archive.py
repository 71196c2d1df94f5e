# SPDX-License-Identifier: Apache-2.0
"""What the modules that write and read bundles have in common. `sha256` also runs on a board."""

import hashlib
import json
import os
import re
import tarfile
from typing import Any, Dict, List, NamedTuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_content import content_of_config

BLOCK = 1 << 20
LARGEST_DOCUMENT = 4 << 20  # what registries take for a manifest
DIGEST = re.compile("^[0-9a-fA-F]{64}$")
CONTROLLER = "controller"  # wheels that no board gets
IMAGES = "images"  # of the user: each layer in a file, and an index
DIRECTORIES = (CONTROLLER, IMAGES)
NAME = re.compile("^(({})/)?[^/]+$".format("|".join(DIRECTORIES)))
IMAGE_INDEX = "images/index.json"
IMAGE_FORMAT = 1


JETSON_STATS = re.compile(r"^jetson_stats-(\d[^-]*)-")


class BundleError(Exception):
    """The bundle cannot be used; the text says why."""


class ArchivedImage(NamedTuple):
    """An image's id in Docker's own store, and its identity in every store."""

    id: str
    content: str


def sha256(path: str) -> str:
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def jtop(path: str) -> Dict[str, Any]:
    """The key `jtop` of a bundle with wheels: the version of jetson-stats and all of the wheels' names."""
    wheels = sorted(name for name in os.listdir(path) if name.endswith(".whl"))
    if not wheels:
        return {}
    stats = [match for match in map(JETSON_STATS.match, wheels) if match]
    if len(stats) != 1:
        raise BundleError(
            "the bundle has {} wheels of jetson-stats ({}); expected is one: remove the others".format(
                len(stats), ", ".join(match.string for match in stats) or "among {}".format(", ".join(wheels))
            )
        )
    return {"jtop": {"version": stats[0].group(1), "wheels": wheels}}


def image_index(path: str) -> List[Dict[str, Any]]:
    """The images of the user in a bundle, as module bundle_images has written them. BundleError."""
    file = os.path.join(path, IMAGE_INDEX)
    if not os.path.exists(file):
        return []
    try:
        with open(file, encoding="utf-8") as stream:
            content = json.load(stream)
        found = content["images"] if content.get("version") == IMAGE_FORMAT else None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BundleError("{} is not an index of images: {}".format(IMAGE_INDEX, error)) from None
    if not isinstance(found, list):
        raise BundleError("{} does not say `version: {}`".format(IMAGE_INDEX, IMAGE_FORMAT))
    return found


def parse_sums(text: str) -> Dict[str, str]:
    """Lines of `sha256sum`, as {file name: hexadecimal digest}."""
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        digest, _, name = line.partition("  ")
        if not DIGEST.match(digest) or not NAME.match(name):
            raise BundleError("SHA256SUMS line {}: not a line of sha256sum: {!r}".format(number, line))
        sums[name] = digest.lower()
    return sums


def documents(archive: str) -> Dict[str, bytes]:
    """{name: content} of the files of an archive that are small enough to be JSON about an image.

    One pass, because a gzipped archive can be read from front to end only.
    """
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None and member.size <= LARGEST_DOCUMENT:
                found[member.name] = content.read()
    return found


def archived_images(archive: str) -> Dict[str, ArchivedImage]:
    """{image name: image} of a `docker save` archive, by its manifest.json."""
    found = documents(archive)
    if "manifest.json" not in found:
        raise BundleError("{}: it has no manifest.json".format(os.path.basename(archive)))
    images = {}
    for entry in json.loads(found["manifest.json"].decode("utf-8")):
        # "<id>.json" up to Docker 24, "blobs/sha256/<id>" since: the name is the id.
        digest = os.path.basename(entry["Config"]).split(".")[0]
        if entry["Config"] not in found:
            raise BundleError("{}: it lacks {}".format(os.path.basename(archive), entry["Config"]))
        content = content_of_config(json.loads(found[entry["Config"]].decode("utf-8")))
        for name in entry.get("RepoTags") or []:
            images[familiar_name(name)] = ArchivedImage("sha256:" + digest, content)
    return images


def familiar_name(name: str) -> str:
    """An image's name as `docker image ls` prints it: without Docker's default registry."""
    for prefix in ("docker.io/library/", "docker.io/"):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
