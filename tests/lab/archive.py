# SPDX-License-Identifier: Apache-2.0
"""Container images of a few files, written without an engine as archives that `docker load` reads."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EXECUTABLE = 0o755


def write(
    out: Path, names: Sequence[str], arch: str, config: Mapping[str, Any], files: Mapping[str, bytes]
) -> None:
    """Write a one-layer image in the format of `docker save` (Docker image specification v1.2), gzipped.

    `files` maps paths inside the image to the content of an executable file. The same input gives the same
    bytes.
    """
    layer = _tar({name.lstrip("/"): content for name, content in files.items()}, EXECUTABLE)
    image = {
        "architecture": arch,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    described = json.dumps(image, sort_keys=True).encode()
    described_name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = json.dumps(
        [{"Config": described_name, "RepoTags": list(names), "Layers": ["layer.tar"]}]
    ).encode()
    archive = _tar({"layer.tar": layer, described_name: described, "manifest.json": manifest}, 0o644)
    out.write_bytes(gzip.compress(archive, mtime=0))


def _tar(files: Mapping[str, bytes], mode: int) -> bytes:
    """Return a tar of files, with the directories that they need."""
    directories = sorted({str(parent) for name in files for parent in Path(name).parents if parent != Path()})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for directory in directories:
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, EXECUTABLE
            tar.addfile(info)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = mode
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
