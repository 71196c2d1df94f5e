# SPDX-License-Identifier: Apache-2.0
"""Where a board keeps the blobs of images: a registry's storage, or a directory.

A blob that is being sent is a file in `partial`, which the next run completes. Runs on the board, therefore
Python 3.6 compatible.
"""

import hashlib
import os
import shutil
from typing import IO, Dict, Iterable, List

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.image_manifest import Blob, hexadecimal

REGISTRY, DIRECTORY = LAYOUTS = ("registry", "directory")
BLOCK = 1 << 20


class StoreError(Exception):
    """A blob cannot be stored; the text says why and what to do."""


def registry_blob(path: str, digest: str) -> str:
    """The file of a blob in the storage of Docker's registry (registry/storage/paths.go)."""
    name = hexadecimal(digest)
    return os.path.join(path, "docker/registry/v2/blobs/sha256", name[:2], name, "data")


class Blobs:
    """The blobs below a directory."""

    def __init__(self, path: str, layout: str) -> None:
        self.path, self.layout = path, layout
        self.partials = os.path.join(path, "partial")

    def file(self, digest: str) -> str:
        """The path of a blob."""
        if self.layout == REGISTRY:
            return registry_blob(self.path, digest)
        return os.path.join(self.path, hexadecimal(digest))

    def partial(self, digest: str) -> str:
        """The path of a blob that is not complete."""
        return os.path.join(self.partials, hexadecimal(digest))

    def bytes_of(self, blob: Blob) -> int:
        """The bytes of a blob that are there."""
        if os.path.isfile(self.file(blob.digest)) and os.path.getsize(self.file(blob.digest)) == blob.size:
            return blob.size
        there = os.path.getsize(self.partial(blob.digest)) if os.path.isfile(self.partial(blob.digest)) else 0
        return there if there < blob.size else 0

    def lacking(self, blobs: Iterable[Blob]) -> Dict[str, int]:
        """{digest: bytes that are there} of the blobs that are not complete."""
        found = {blob: self.bytes_of(blob) for blob in blobs}
        return {blob.digest: there for blob, there in found.items() if there != blob.size}

    def tidy(self, blobs: Iterable[Blob]) -> None:
        """Complete blobs whose last piece is there, and delete the parts of other blobs. StoreError."""
        kept = {hexadecimal(blob.digest) for blob in blobs}
        for blob in blobs:
            partial = self.partial(blob.digest)
            if os.path.isfile(partial) and os.path.getsize(partial) >= blob.size:
                self.complete(blob)
        for name in os.listdir(self.partials) if os.path.isdir(self.partials) else []:
            if name not in kept:
                os.unlink(os.path.join(self.partials, name))

    def append(self, blob: Blob, offset: int, piece: IO[bytes]) -> int:
        """Append a piece to a blob, durably; return the bytes that are there. StoreError."""
        os.makedirs(self.path, exist_ok=True)  # Python 3.6 would give it the mode of the partials
        os.makedirs(self.partials, 0o700, exist_ok=True)
        partial = self.partial(blob.digest)
        with open(partial, "ab") as stream:
            if os.path.getsize(partial) < offset:
                raise StoreError(
                    "{} has {} bytes, and the piece begins at {}: another run sends the same image. Wait for "
                    "its end, and run the playbook again".format(partial, os.path.getsize(partial), offset)
                )
            stream.truncate(offset)
            shutil.copyfileobj(piece, stream, BLOCK)
            stream.flush()
            os.fsync(stream.fileno())
            there = stream.tell()
        if there >= blob.size:
            self.complete(blob)
        return there

    def complete(self, blob: Blob) -> None:
        """Put a blob of which all bytes are there into its place, if its SHA-256 is right. StoreError."""
        partial, digest = self.partial(blob.digest), hashlib.sha256()
        with open(partial, "rb") as stream:
            for block in iter(lambda: stream.read(BLOCK), b""):
                digest.update(block)
        if digest.hexdigest() != hexadecimal(blob.digest):
            os.unlink(partial)
            raise StoreError(
                "{} has the SHA-256 {} on the board, and was removed there. Check the disk and the memory "
                "of the board, "
                "then run the playbook again".format(blob.digest, digest.hexdigest())
            )
        os.makedirs(os.path.dirname(self.file(blob.digest)), exist_ok=True)
        os.chmod(partial, 0o644)
        os.rename(partial, self.file(blob.digest))


def blobs_of(described: Iterable[Dict[str, object]]) -> List[Blob]:
    """Blobs by their digests and sizes, as a module gets them."""
    return [Blob(str(one["digest"]), int(str(one["size"]))) for one in described]
