# SPDX-License-Identifier: Apache-2.0
"""What the modules that write and read bundles have in common. Runs on the controller."""

import hashlib
import json
import os
import re
import tarfile

BLOCK = 1 << 20
DIGEST = re.compile("^[0-9a-fA-F]{64}$")


class BundleError(Exception):
    """The bundle as a whole cannot be used; the text says why."""


def sha256(path):
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def parse_sums(text):
    """Lines of `sha256sum`, as {file name: hexadecimal digest}."""
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        digest, _, name = line.partition("  ")
        if not DIGEST.match(digest) or not name or "/" in name:
            raise BundleError("SHA256SUMS line {}: not a line of sha256sum: {!r}".format(number, line))
        sums[name] = digest.lower()
    return sums


def image_ids(archive):
    """{image name: id} of a `docker save` archive, by its manifest.json."""
    with tarfile.open(archive) as tar:
        member = tar.extractfile("manifest.json")
        if member is None:
            raise BundleError("{}: manifest.json is not a file".format(os.path.basename(archive)))
        images = {}
        for entry in json.loads(member.read().decode("utf-8")):
            # "<id>.json" up to Docker 24, "blobs/sha256/<id>" since: the name is the id.
            digest = os.path.basename(entry["Config"]).split(".")[0]
            images.update({familiar_name(name): "sha256:" + digest for name in entry.get("RepoTags") or []})
        return images


def familiar_name(name):
    """An image's name as `docker image ls` prints it: without Docker's default registry."""
    for prefix in ("docker.io/library/", "docker.io/"):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
