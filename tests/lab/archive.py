# SPDX-License-Identifier: Apache-2.0
"""Container images of a few files, written without an engine as archives that `docker load` reads."""

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from images.arm64 import pack


def write(
    out: Path, names: Sequence[str], arch: str, config: Mapping[str, Any], files: Mapping[str, bytes]
) -> None:
    """Write an image of executable files, which `files` has by their paths, gzipped if `out` ends in .gz.

    The same input gives the same bytes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        layer = Path(scratch, "layer.tar")
        with tarfile.open(layer, "w") as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name.lstrip("/"))
                info.mode, info.size = 0o755, len(content)
                tar.addfile(info, io.BytesIO(content))
        pack.write_docker_archive(out, [pack.image(arch, config, layer, created=0, names=names)])


def layer(files: Mapping[str, bytes]) -> bytes:
    """The tar of executable files, which `files` has by their paths."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name.lstrip("/"))
            info.mode, info.size = 0o755, len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_layers(
    out: Path, name: str, arch: str, config: Mapping[str, Any], layers: Sequence[bytes | Path]
) -> str:
    """Write an image of several layers as `docker save` up to Docker 24; return its id.

    `layers` are their tars, or files with these.
    """
    digests = [
        pack.sha256(one) if isinstance(one, Path) else hashlib.sha256(one).hexdigest() for one in layers
    ]
    described = {
        "os": "linux",
        "architecture": arch,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    text = json.dumps(described).encode()
    digest = hashlib.sha256(text).hexdigest()
    members = {f"{number}/layer.tar": one for number, one in enumerate(layers)}
    entry = {"Config": f"{digest}.json", "RepoTags": [name], "Layers": list(members)}
    files = {f"{digest}.json": text, **members, "manifest.json": json.dumps([entry]).encode()}
    with tarfile.open(out, "w:gz" if out.suffix == ".gz" else "w") as tar:
        for path, content in files.items():
            if isinstance(content, Path):
                tar.add(content, path)
                continue
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return f"sha256:{digest}"
