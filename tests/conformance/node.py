# SPDX-License-Identifier: Apache-2.0
"""A node whose GPU is shared in units: configuration, library, and what containers mount."""

import struct
import sys
from pathlib import Path


class Node:
    """The plugin's files on a node. The library is one by its header alone."""

    def __init__(self, place: Path) -> None:
        self.config = place / "config.yaml"
        self.library = place / "libtegra-gpu-limit.so"
        self.limit = place / "limit"
        own = Path(sys.executable).read_bytes()[:20]
        self.library.write_bytes(own[:16] + struct.pack("<H", 3) + own[18:] + bytes(100))

    def share(self, sharing: str) -> None:
        self.config.write_text(f"version: v1\nsharing: {{{sharing}}}\n")

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            f"--config={self.config}",
            f"--gpu-limit-dir={self.limit}",
            f"--gpu-limit-library={self.library}",
        )
