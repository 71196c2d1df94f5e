# SPDX-License-Identifier: Apache-2.0
"""The manifest of an image whose layers are gzipped. An image has the same one wherever it is written.

Runs on boards and on the controller, therefore Python 3.6 compatible.
"""

import json
from typing import Any, Dict, NamedTuple, Sequence

MEDIA = "application/vnd.docker."
MANIFEST, CONFIG, LAYER = (
    MEDIA + "distribution.manifest.v2+json",
    MEDIA + "container.image.v1+json",
    MEDIA + "image.rootfs.diff.tar.gzip",
)


class Blob(NamedTuple):
    """A file of an image: `sha256:` with 64 hexadecimal digits, and bytes."""

    digest: str
    size: int


def blob_of(described: Dict[str, Any]) -> Blob:
    """A blob of the index of a bundle, or of a manifest."""
    return Blob(described["digest"], described["size"])


def hexadecimal(digest: str) -> str:
    """The name of a blob's file."""
    return digest.partition(":")[2]


def manifest(config: Blob, layers: Sequence[Blob]) -> bytes:
    """The manifest, as a registry gives it to Docker and containerd."""
    described = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": config.digest, "size": config.size},
        "layers": [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers],
    }
    return json.dumps(described, sort_keys=True).encode("utf-8")


def full_name(name: str) -> str:
    """The name of an image as containerd has it, with its registry."""
    first, _, rest = name.partition("/")
    if not rest:
        return "docker.io/library/" + name
    has_registry = "." in first or ":" in first or first == "localhost"
    return name if has_registry else "docker.io/" + name
