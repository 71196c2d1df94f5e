# SPDX-License-Identifier: Apache-2.0
"""Container images of a few files, written without an engine as archives that `docker load` reads."""

import io
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
