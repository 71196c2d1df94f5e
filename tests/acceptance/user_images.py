# SPDX-License-Identifier: Apache-2.0
"""SIMULATED images of a user: a program that sleeps, and large layers that do not compress."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from images.arm64 import pack
from tests.lab import archive, workloads

NAME = "registry.site.example/app:1.0"


def payload(seed: int, megabytes: int) -> bytes:
    """A layer that does not compress."""
    content = random.Random(seed).randbytes(megabytes * 1_000_000)  # noqa: S311 - no secret
    return archive.layer({f"payload-{seed}": content})


def write(
    out: Path, layers: Sequence[bytes | Path], *, name: str = NAME, arch: str = workloads.DEFAULT_ARCH
) -> str:
    """Write an image that sleeps, with these layers on top; return its id."""
    with tempfile.TemporaryDirectory() as scratch:
        pause = Path(scratch, "layer.tar")
        pack.read_docker_archive(workloads.pause_archive(), pause)
        program = pause.read_bytes()
    return archive.write_layers(out, name, arch, {"Entrypoint": ["/pause"]}, [program, *layers])
