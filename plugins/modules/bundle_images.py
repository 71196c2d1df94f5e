#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Put images of the user into an offline bundle, each layer once. Runs on the controller."""

import json
import os
import shutil
import tarfile
import tempfile
import zlib
from typing import IO, Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils import image_archive, image_skopeo
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.bundle_archive import (
    IMAGE_INDEX,
    IMAGES,
    BundleError,
    image_index,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_archive import Image, Packed, digest_of
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_content import content_of_config
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import (
    Blob,
    hexadecimal,
    manifest,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_requirements import requirements

DOCUMENTATION = r"""
module: bundle_images
short_description: Images of the user in an offline bundle
description:
  - Writes each layer of the images into the directory C(images) of the bundle, gzipped, in a file that is
    named by its SHA-256. A layer that several images have is there once, and a layer of an earlier bundle
    stays as it is. Other files of that directory are deleted.
  - Every image is read and checked before a file is written.
options:
  path: {type: path, required: true, description: Directory of the bundle.}
  images:
    type: list
    elements: str
    required: true
    description: Absolute paths of archives, and names of images in registries with a digest.
  architectures: {type: list, elements: str, required: true, description: Those of the bundle, such as
    C(arm64).}
"""

RETURN = r"""
images: {type: list, description: The images, as the index of the bundle describes them.}
"""

Data = Dict[str, Any]
Run = Callable[..., Tuple[int, str, str]]

# Sent over a slow link, and compressed once.
LEVEL = 6
ADVICE = "build it for the board: docker buildx build --platform linux/{} ..."
PARTIAL = ".partial"


class Named(NamedTuple):
    """An image, its name on the boards, the archive that has it, and the entry of bundle_images."""

    name: str
    image: Image
    archive: str
    source: str


def for_bundle(place: str, images: Sequence[Image], architectures: Sequence[str]) -> List[Image]:
    """Those of an archive's images that are for the bundle's boards. BundleError if there is none."""
    found = [image for image in images if image.architecture in architectures]
    if not found:
        names = sorted(name for image in images for name in image.names) or ["no image"]
        others = sorted({image.architecture for image in images})
        raise BundleError(
            "{}: {} is for {}, and this bundle is for {}: {}. For plain hosts of another architecture, "
            "add it to "
            "bundle_architectures".format(
                place,
                ", ".join(names),
                ", ".join(others) or "none",
                " and ".join(architectures),
                ADVICE.format(architectures[0]),
            )
        )
    return found


def of_archive(place: str, architectures: Sequence[str]) -> List[Named]:
    """The images of an archive. BundleError."""
    images = for_bundle(place, image_archive.read(place), architectures)
    nameless = [image.id for image in images if not image.names]
    if nameless:
        raise BundleError(
            "{}: the image {} has no name: save it by its name, `docker save NAME:TAG --output {}`".format(
                place, nameless[0][:19], os.path.basename(place)
            )
        )
    return [Named(name, image, place, os.path.basename(place)) for image in images for name in image.names]


def of_registry(run: Run, text: str, architectures: Sequence[str], scratch: str) -> List[Named]:
    """An image of a registry, which skopeo writes into archives. BundleError."""
    reference, found = image_skopeo.Reference(text), []  # type: ignore[var-annotated]
    reference.pinned()
    for number, architecture in enumerate(architectures):
        archive = os.path.join(tempfile.mkdtemp(dir=scratch), "{}.tar".format(number))
        if image_skopeo.copy(run, reference, architecture, archive):
            for image in for_bundle(text, image_archive.read(archive), architectures):
                if image.id not in [one.image.id for one in found]:
                    found.append(Named(reference.image, image, archive, text))
    if not found:
        raise BundleError("{}: it has no image for {}".format(text, " or ".join(architectures)))
    return found


def check_names(images: Iterable[Named]) -> None:
    """BundleError if a name stands for two images of an architecture, or a file name for two archives."""
    known: Dict[Tuple[str, str], Named] = {}
    places: Dict[str, str] = {}
    for one in images:
        if places.setdefault(one.source, one.archive) != one.archive and os.path.isabs(one.archive):
            if one.source == os.path.basename(one.archive):
                raise BundleError(
                    "bundle_images: {} and {} have the same file name: rename one of them".format(
                        places[one.source], one.archive
                    )
                )
        other = known.setdefault((one.name, one.image.architecture), one)
        if other.image.id != one.image.id:
            raise BundleError(
                "bundle_images: {} and {} both have an image {}, with different contents ({} and {}): "
                "give one of them "
                "another tag, `docker tag`, and save it again".format(
                    other.source, one.source, one.name, other.image.id[:19], one.image.id[:19]
                )
            )


class Directory:
    """The directory of the images in a bundle."""

    def __init__(self, bundle: str) -> None:
        self.path = os.path.join(bundle, IMAGES)
        self.former = image_index(bundle)
        self.known: Dict[str, Blob] = {}
        for entry in self.former:
            for layer in entry["layers"]:
                blob = Blob(layer["digest"], layer["size"])
                if self.has(blob):
                    self.known[layer["diff_id"]] = blob

    def file(self, digest: str) -> str:
        """The path of a blob."""
        return os.path.join(self.path, hexadecimal(digest))

    def has(self, blob: Blob) -> bool:
        """Is the blob there?"""
        path = self.file(blob.digest)
        return os.path.isfile(path) and os.path.getsize(path) == blob.size

    def put(self, content: bytes) -> Blob:
        """Write a small blob."""
        blob = Blob(digest_of(content), len(content))
        if not self.has(blob):
            replace_file(self.file(blob.digest), content.decode("utf-8"))
        return blob

    def put_layer(self, stream: IO[bytes], layer: image_archive.Layer) -> None:
        """Write a layer. BundleError if it is another one than the image's."""
        packed, partial = Packed(stream, layer, LEVEL), os.path.join(self.path, PARTIAL)
        with open(partial, "wb") as file:
            for block in packed.blocks():
                file.write(block)
        os.rename(partial, self.file(packed.digest))
        self.known[layer.diff_id] = Blob(packed.digest, packed.size)

    def fill(self, archive: str, images: Iterable[Image]) -> None:
        """Write the layers of an archive that are not there, from its front to its end. BundleError."""
        wanted = {layer.member: layer for image in images for layer in image.layers}
        wanted = {name: layer for name, layer in wanted.items() if layer.diff_id not in self.known}
        if not wanted:
            return
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    layer = wanted.get(os.path.normpath(member.name))
                    stream = tar.extractfile(member) if layer and member.isfile() else None
                    if layer and stream and layer.diff_id not in self.known:
                        self.put_layer(stream, layer)
        except (BundleError, tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise BundleError(
                "{}: {}".format(archive, image_archive.DAMAGED.format(error, os.path.basename(archive)))
            ) from None

    def entry(self, one: Named) -> Data:
        """The entry of an image, whose layers are there."""
        config = self.put(one.image.config)
        layers = [self.known[layer.diff_id] for layer in one.image.layers]
        described = self.put(manifest(config, layers))
        return dict(
            requirements(one.image.described, one.name),
            name=one.name,
            source=one.source,
            id=one.image.id,
            content=content_of_config(one.image.described),
            manifest=described._asdict(),
            config=config._asdict(),
            layers=[
                dict(self.known[layer.diff_id]._asdict(), diff_id=layer.diff_id) for layer in one.image.layers
            ],
        )

    def clean(self, entries: Sequence[Data]) -> None:
        """Delete the files that no image has."""
        blobs = [blob for one in entries for blob in [one["manifest"], one["config"], *one["layers"]]]
        kept = {os.path.basename(IMAGE_INDEX), *(hexadecimal(blob["digest"]) for blob in blobs)}
        for name in set(os.listdir(self.path)) - kept:
            os.unlink(os.path.join(self.path, name))


def write(bundle: str, images: Sequence[Named]) -> Tuple[bool, List[Data]]:
    """Bring the directory to its state: (did it change, the images). BundleError."""
    there = Directory(bundle)
    if not images:
        had = os.path.isdir(there.path)
        shutil.rmtree(there.path, ignore_errors=True)
        return had, []
    os.makedirs(there.path, exist_ok=True)
    for archive in sorted({one.archive for one in images}):
        there.fill(archive, [one.image for one in images if one.archive == archive])
    entries = sorted((there.entry(one) for one in images), key=lambda one: (one["name"], one["architecture"]))
    if entries != there.former:
        text = json.dumps({"version": 1, "images": entries}, indent=1, sort_keys=True)
        replace_file(os.path.join(bundle, IMAGE_INDEX), text + "\n")
    there.clean(entries)
    return entries != there.former, entries


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "images": {"type": "list", "elements": "str", "required": True},
            "architectures": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    bundle, architectures = module.params["path"], module.params["architectures"]
    try:
        with tempfile.TemporaryDirectory(
            dir=bundle if os.path.isdir(bundle) else None, prefix="."
        ) as scratch:
            found: List[Named] = []
            for image in module.params["images"]:
                if os.path.isabs(image):
                    found += of_archive(image, architectures)
                else:
                    found += of_registry(module.run_command, image, architectures, scratch)
            check_names(found)
            if module.check_mode:
                former = {one["id"] for one in image_index(bundle)}
                module.exit_json(changed=former != {one.image.id for one in found}, images=[])
            changed, entries = write(bundle, found)
    except (BundleError, OSError, ValueError, KeyError) as error:
        module.fail_json(msg=str(error) or type(error).__name__)
    module.exit_json(changed=changed, images=entries)


if __name__ == "__main__":
    main()
