#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Put the images of a bundle's archive into the storage of a registry, and take others out of it.

Runs on the board, therefore Python 3.6 compatible.
"""

import hashlib
import json
import os
import posixpath
import shutil
import tarfile
import zlib
from typing import IO, Any, Dict, Iterable, Iterator, List, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import (
    Blob,
    blob_of,
    hexadecimal,
    manifest,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_store import registry_blob

DOCUMENTATION = r"""
module: registry_images
short_description: Which images a registry has that only reads
description:
  - Writes the files of Docker's registry program (distribution, C(registry/storage/paths.go)), which are the
    same from its version 2.0 to 3.0. So the registry itself never has to take anything from anybody.
  - Each image is in the repository C(jetson-k3s), with the hexadecimal part of its id as tag.
  - Without O(archive) every other image is deleted.
options:
  path: {type: path, required: true, description: The registry's directory.}
  images: {type: list, elements: str, required: true, description: Ids of the images that it has to have.}
  archive: {type: path, description: A C(docker save) archive that has some of O(images).}
  described:
    type: list
    elements: dict
    default: []
    description: >-
      C(id), C(config) and C(layers) of those O(images) whose blobs module image_blobs puts into the
      storage. They become images of the registry when all of their blobs are there, which stay until then.
"""

RETURN = r"""
missing: {type: list, elements: str, description: Ids of those O(images) that the registry lacks.}
"""

Data = Dict[str, Any]  # parsed JSON

REPOSITORY = "jetson-k3s"
GZIP = b"\x1f\x8b"
# For a site's network: the processor of a board is slower than it.
LEVEL = 1
BLOCK = 1 << 20


class ImageError(Exception):
    """An archive cannot be taken; the text says why."""


class Store:
    """The storage below a directory. Digests and ids are `sha256:` and 64 hexadecimal digits."""

    def __init__(self, path: str) -> None:
        self.path, root = path, os.path.join(path, "docker/registry/v2")
        self.blobs = os.path.join(root, "blobs/sha256")
        self.layers = os.path.join(root, "repositories", REPOSITORY, "_layers/sha256")
        self.revisions = os.path.join(root, "repositories", REPOSITORY, "_manifests/revisions/sha256")
        self.tags = os.path.join(root, "repositories", REPOSITORY, "_manifests/tags")
        self.partial = os.path.join(root, "partial")

    def blob(self, digest: str) -> str:
        """Path of a blob."""
        return registry_blob(self.path, digest)

    def put(self, blocks: Iterable[bytes]) -> Blob:
        """Store a blob, durably and in one step; return its digest and size."""
        os.makedirs(os.path.dirname(self.partial), exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with open(self.partial, "wb") as stream:
            for block in blocks:
                digest.update(block)
                size += len(block)
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        name = "sha256:" + digest.hexdigest()
        os.makedirs(os.path.dirname(self.blob(name)), exist_ok=True)
        os.rename(self.partial, self.blob(name))
        return Blob(name, size)

    def link(self, directory: str, digest: str) -> None:
        """Make a blob known to the repository."""
        os.makedirs(directory, exist_ok=True)
        partial = os.path.join(directory, ".link")
        with open(partial, "w") as stream:
            stream.write(digest)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(partial, os.path.join(directory, "link"))

    def add(self, image: str, config: Blob, layers: List[Blob]) -> None:
        """Make an image of blobs that are there; its tag comes last."""
        described, _ = self.put([manifest(config, layers)])
        for blob in [config, *layers]:
            self.link(os.path.join(self.layers, hexadecimal(blob.digest)), blob.digest)
        revision = hexadecimal(described)
        tag = os.path.join(self.tags, hexadecimal(image))
        self.link(os.path.join(self.revisions, revision), described)
        self.link(os.path.join(tag, "index/sha256", revision), described)
        self.link(os.path.join(tag, "current"), described)

    def parts(self, image: str) -> List[str]:
        """Digests of all blobs of an image, its manifest first.

        Empty where anything is missing or cut short, or the tag leads to another image.
        """
        try:
            with open(os.path.join(self.tags, image.partition(":")[2], "current/link")) as stream:
                manifest = stream.read()
            with open(self.blob(manifest)) as stream:
                described = json.load(stream)
            blobs = [described["config"], *described["layers"]]
            if blobs[0]["digest"] != image or any(
                os.path.getsize(self.blob(blob["digest"])) != blob["size"] for blob in blobs
            ):
                return []
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return [manifest, *(blob["digest"] for blob in blobs)]

    def has(self, blobs: Iterable[Blob]) -> bool:
        """Are all of the blobs there?"""
        return all(
            os.path.isfile(self.blob(digest)) and os.path.getsize(self.blob(digest)) == size
            for digest, size in blobs
        )

    def others(self, images: List[str], described: Sequence[Data] = ()) -> List[str]:
        """Directories that no image of these needs, nor one that is `described` and may not be complete."""
        parts = {hexadecimal(digest) for image in images for digest in self.parts(image)}
        parts |= {hexadecimal(blob.digest) for one in described for blob in blobs_of(one)}
        tags = {image.partition(":")[2] for image in images if self.parts(image)}
        blobs = [os.path.join(self.blobs, prefix) for prefix in names(self.blobs)]
        kept = [(self.tags, tags), (self.layers, parts), (self.revisions, parts)]
        kept += [(directory, parts) for directory in blobs]
        return [
            os.path.join(directory, name)
            for directory, wanted in kept
            for name in names(directory)
            if name not in wanted
        ]


def blobs_of(described: Data) -> List[Blob]:
    """The blobs of an image of the bundle's index: its configuration first."""
    return [blob_of(described["config"]), *map(blob_of, described["layers"])]


def names(directory: str) -> List[str]:
    """What is in a directory; nothing where there is none."""
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def packed(stream: IO[bytes]) -> Iterator[bytes]:
    """Content of a layer, gzipped if it is not yet; the same content gives the same bytes."""
    block = stream.read(BLOCK)
    squeeze = None if block.startswith(GZIP) else zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
    while block:
        yield squeeze.compress(block) if squeeze else block
        block = stream.read(BLOCK)
    if squeeze:
        yield squeeze.flush()


def opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """A file of an archive. ImageError for a member of another type, such as a directory."""
    stream = tar.extractfile(member)
    if stream is None:
        raise ImageError("{} is not a file".format(member.name))
    return stream


def contents(path: str) -> Tuple[List[Data], Dict[str, str]]:
    """(Entries of an archive's manifest.json, {name of a link in it: name of its file})."""
    entries, links = None, {}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.name == "manifest.json":
                entries = json.loads(opened(tar, member).read().decode("utf-8"))
            elif member.issym():  # Docker up to 24 writes a layer of several images once
                target = posixpath.join(posixpath.dirname(member.name), member.linkname)
                links[member.name] = posixpath.normpath(target)
            elif member.islnk():
                links[member.name] = member.linkname
    if entries is None:
        raise ImageError("no manifest.json, so it is not of `docker save`")
    return entries, links


def image_id(entry: Data) -> str:
    """The id of an image: the digest of its configuration, which is the file's name."""
    file: str = entry["Config"]
    return "sha256:" + posixpath.basename(file).split(".")[0]


def fill(store: Store, path: str, images: List[str]) -> None:
    """Put those images of an archive into the store; ImageError where it is not what it says.

    It is read from front to end, because a gzipped file cannot be read in another way.
    """
    entries, links = contents(path)
    entries = [entry for entry in entries if image_id(entry) in images]
    configs = {links.get(entry["Config"], entry["Config"]) for entry in entries}
    layers = {links.get(name, name) for entry in entries for name in entry["Layers"]}
    found = {}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile() and member.name in configs | layers:
                stream = opened(tar, member)
                blocks = packed(stream) if member.name in layers else [stream.read()]
                found[member.name] = store.put(blocks)
    for entry in entries:
        needed = [links.get(name, name) for name in [entry["Config"], *entry["Layers"]]]
        absent = [name for name in needed if name not in found]
        if absent:
            raise ImageError("it lacks {}".format(", ".join(absent)))
        config, *blobs = [found[name] for name in needed]
        if config.digest != image_id(entry):
            raise ImageError("{} has the SHA-256 {}".format(entry["Config"], config.digest))
        store.add(image_id(entry), config, blobs)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "images": {"type": "list", "elements": "str", "required": True},
            "archive": {"type": "path"},
            "described": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    images, archive, described = (module.params[name] for name in ("images", "archive", "described"))
    store = Store(module.params["path"])
    os.umask(0o022)  # the registry reads as another user
    missing = [image for image in images if not store.parts(image)]
    others = [] if archive else store.others(images, described)
    try:
        if not module.check_mode:
            for path in others:
                shutil.rmtree(path)
            if archive and missing:
                fill(store, archive, missing)
            for one in described:
                config, *layers = blobs_of(one)
                if one["id"] in missing and store.has([config, *layers]):
                    store.add(one["id"], config, layers)
    except (ImageError, OSError, tarfile.TarError, zlib.error, KeyError, ValueError) as error:
        module.fail_json(msg="{}: {}".format(archive or module.params["path"], error or type(error).__name__))
    left = [image for image in images if not store.parts(image)]
    filled = bool(archive and missing) if module.check_mode else left != missing
    module.exit_json(changed=bool(others) or filled, missing=left)


if __name__ == "__main__":
    main()
