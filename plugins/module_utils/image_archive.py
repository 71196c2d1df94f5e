# SPDX-License-Identifier: Apache-2.0
"""Container images in archives: those of `docker save`, and OCI archives.

Runs on the controller, and is Python 3.6 compatible as all of this directory.
"""

import hashlib
import json
import os
import posixpath
import tarfile
import zlib
from typing import IO, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import (
    BLOCK,
    LARGEST_DOCUMENT,
    BundleError,
    familiar_name,
)

Data = Dict[str, Any]  # parsed JSON

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Annotations of an OCI archive's index with the image's name: containerd's (also `docker buildx`), and OCI's.
NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
DAMAGED = (
    "the archive is damaged ({}): copy it again, or make it again with `docker save NAME:TAG --output {}`"
)


class Layer(NamedTuple):
    """A layer: the file that has it in the archive, and the digest of its tar."""

    member: str
    diff_id: str


class Image(NamedTuple):
    """An image of an archive."""

    names: Tuple[str, ...]
    config: bytes
    layers: Tuple[Layer, ...]

    @property
    def id(self) -> str:
        """The digest of the configuration."""
        return digest_of(self.config)

    @property
    def described(self) -> Data:
        """The configuration."""
        found: Data = json.loads(self.config.decode("utf-8"))
        return found

    @property
    def architecture(self) -> str:
        """Go's name of the architecture, such as arm64."""
        return str(self.described.get("architecture") or "")


def digest_of(content: bytes) -> str:
    """The digest of a file of an image."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def blob_name(digest: str) -> str:
    """The file of a digest in an OCI archive."""
    return "blobs/" + digest.replace(":", "/")


def contents(path: str) -> Tuple[Dict[str, bytes], Dict[str, str], List[str]]:
    """({name: content} of the small files, {name of a link: name of its file}, names of all files)."""
    small, links, files = {}, {}, []
    with tarfile.open(path) as tar:
        for member in tar:
            name = posixpath.normpath(member.name)
            if member.issym():  # Docker up to 24 writes a layer of several images once
                links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            elif member.islnk():
                links[name] = posixpath.normpath(member.linkname)
            elif member.isfile():
                files.append(name)
                stream = tar.extractfile(member)
                if stream is not None and member.size <= LARGEST_DOCUMENT:
                    small[name] = stream.read()
    return small, links, files


def parsed(small: Dict[str, bytes], name: str) -> Data:
    """A JSON document of the archive. BundleError without it."""
    if name not in small:
        raise BundleError("it lacks {}".format(name))
    found: Data = json.loads(small[name].decode("utf-8"))
    return found


def image_of(
    names: Sequence[str], config: bytes, members: Sequence[str], links: Dict[str, str], files: Sequence[str]
) -> Image:
    """An image, of which every file is there. BundleError."""
    described = json.loads(config.decode("utf-8"))
    diff_ids = (described.get("rootfs") or {}).get("diff_ids") or []
    if len(diff_ids) != len(members):
        raise BundleError("it has {} layers, and its configuration {}".format(len(members), len(diff_ids)))
    found = [links.get(posixpath.normpath(one), posixpath.normpath(one)) for one in members]
    absent = sorted(set(found) - set(files))
    if absent:
        raise BundleError("it lacks {}".format(", ".join(absent)))
    return Image(tuple(map(familiar_name, names)), config, tuple(map(Layer, found, diff_ids)))


def docker_images(small: Dict[str, bytes], links: Dict[str, str], files: Sequence[str]) -> Iterator[Image]:
    """The images of `docker save`, by manifest.json."""
    entries: Any = parsed(small, "manifest.json")
    for entry in entries:
        name = posixpath.normpath(entry["Config"])
        name = links.get(name, name)
        if name not in small:
            raise BundleError("it lacks {}".format(entry["Config"]))
        yield image_of(entry.get("RepoTags") or [], small[name], entry["Layers"], links, files)


def oci_manifests(small: Dict[str, bytes], index: Data, names: Sequence[str]) -> Iterator[Tuple[Any, Data]]:
    """(names, manifest) of each image of an OCI index, also of the indexes in it."""
    for entry in index.get("manifests") or []:
        annotations = entry.get("annotations") or {}
        own = [
            annotations[key]
            for key in NAMES
            if "/" in str(annotations.get(key)) or ":" in str(annotations.get(key))
        ]
        found = parsed(small, blob_name(entry["digest"]))
        if "manifests" in found:
            for one in oci_manifests(small, found, own or names):
                yield one
        elif "vnd.docker.reference.type" not in annotations:  # an attestation is no image
            yield (own[:1] or names[:1]), found


def oci_images(small: Dict[str, bytes], links: Dict[str, str], files: Sequence[str]) -> Iterator[Image]:
    """The images of an OCI archive, by index.json."""
    for names, manifest in oci_manifests(small, parsed(small, "index.json"), ()):
        config = blob_name(manifest["config"]["digest"])
        if config not in small:
            raise BundleError("it lacks {}".format(config))
        yield image_of(
            names, small[config], [blob_name(one["digest"]) for one in manifest["layers"]], links, files
        )


def read(path: str) -> List[Image]:
    """The images of an archive. BundleError says what is wrong with it and what to do."""
    name = os.path.basename(path)
    try:
        small, links, files = contents(path)
        if "manifest.json" in small:
            return list(docker_images(small, links, files))
        if "index.json" in small:
            return list(oci_images(small, links, files))
    except BundleError as error:
        raise BundleError("{}: {}".format(path, DAMAGED.format(error, name))) from None
    except FileNotFoundError:
        raise BundleError("{}: there is no such file".format(path)) from None
    except (
        tarfile.TarError,
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise BundleError(
            "{}: {}".format(path, DAMAGED.format(str(error) or type(error).__name__, name))
        ) from None
    raise BundleError(
        "{}: this is no archive of an image, because it has neither manifest.json nor index.json: make it "
        "with `docker save NAME:TAG --output {}`".format(path, name)
    )


class Packed:
    """A layer as it is sent: gzipped. `digest` and `size` are complete after the last block.

    BundleError if the layer is not the one of `diff_id`, or is compressed in a way that boards cannot read.
    The same tar gives the same bytes, with the same zlib.
    """

    def __init__(self, stream: IO[bytes], layer: Layer, level: int) -> None:
        self.stream, self.layer, self.level = stream, layer, level
        self.hash, self.size = hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        """The digest of the gzipped layer."""
        return "sha256:" + self.hash.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """The gzipped content."""
        block = self.stream.read(BLOCK)
        if block.startswith(ZSTD):
            raise BundleError(
                "the layer {} is compressed by zstd, which Docker 20.10 cannot read: build the image with "
                "`docker buildx build --output type=docker,dest=FILE`, or save it with `docker save`".format(
                    self.layer.member
                )
            )
        squeezed = block.startswith(GZIP)
        tar = hashlib.sha256()
        squeeze = None if squeezed else zlib.compressobj(self.level, zlib.DEFLATED, 31)
        unpack: Optional[Callable[[bytes], bytes]] = unpacker() if squeezed else None
        while block:
            tar.update(unpack(block) if unpack else block)
            yield self._given(squeeze.compress(block) if squeeze else block)
            block = self.stream.read(BLOCK)
        if squeeze:
            yield self._given(squeeze.flush())
        if "sha256:" + tar.hexdigest() != self.layer.diff_id:
            raise BundleError(
                "the layer {} has the SHA-256 {}, and the image's configuration says {}".format(
                    self.layer.member, tar.hexdigest(), self.layer.diff_id
                )
            )

    def _given(self, block: bytes) -> bytes:
        self.hash.update(block)
        self.size += len(block)
        return block


def unpacker() -> Callable[[bytes], bytes]:
    """A function that unpacks the blocks of a gzipped file, which may have several members."""
    state = [zlib.decompressobj(31)]

    def unpack(block: bytes) -> bytes:
        found = []
        while block:
            found.append(state[0].decompress(block))
            block = state[0].unused_data
            if block:
                state[0] = zlib.decompressobj(31)
        return b"".join(found)

    return unpack
