# SPDX-License-Identifier: Apache-2.0
"""SIMULATED workloads: an image of pause, and CUDA's driver."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from images.arm64 import gpu_limit
from tests.lab import compiler
from tools.cache import cached
from tools.engine import LABEL
from tools.process import run, step

DEFAULT_ARCH = "amd64"  # of container boards
SOURCES = Path(__file__).parent / "simulated_workloads"
LIBCUDA_SOURCE = SOURCES / "libcuda.c"
LIBCUDA_FLAGS = (
    *("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wno-unused-parameter", "-Wl,-soname,libcuda.so.1"),
)
# The name that K3s asks for.
PAUSE_IMAGE = "rancher/mirrored-pause:3.6"
EXECUTABLE = 0o755


def pause_archive(arch: str = DEFAULT_ARCH) -> Path:
    parts = (Path(__file__), SOURCES / "pause.c")
    recipe = hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()[:12]

    def build(out: Path) -> None:
        with step(f"building the simulated pause for {arch}"):
            settings = {"Entrypoint": ["/pause"], "Labels": {f"{LABEL}.image": "SIMULATED"}}
            write_image(out, [PAUSE_IMAGE], arch, settings, {"pause": _compile("pause.c", out.parent, arch)})

    return cached(f"workloads/pause-{arch}-{recipe}.tar.gz", build)


def libcuda(release: str, arch: str = DEFAULT_ARCH) -> Path:
    major, _, minor = release.partition(".")
    # Drivers before CUDA 12 have the older table of symbols only.
    hashes = "both" if int(major) >= 12 else "sysv"
    parts = (LIBCUDA_SOURCE, gpu_limit.SOURCES / "driver_api.h")
    read = b"\0".join(part.read_bytes() for part in parts)
    recipe = hashlib.sha256(read + " ".join(LIBCUDA_FLAGS).encode())

    def build(out: Path) -> None:
        out.mkdir()
        flags = [
            *LIBCUDA_FLAGS,
            f"-DCUDA={int(major) * 1000 + int(minor) * 10}",
            f"-Wl,--hash-style={hashes}",
        ]
        gcc = compiler.tool("gcc", arch)
        run([gcc, *flags, "-o", out / "libcuda.so.1", LIBCUDA_SOURCE, "-ldl", "-lpthread"])

    return cached(f"workloads/libcuda-{release}-{arch}-{recipe.hexdigest()[:12]}", build)


def _compile(source: str, scratch: Path, arch: str) -> bytes:
    program = scratch / Path(source).stem
    gcc = compiler.tool("gcc", arch)
    run([gcc, "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCES / source])
    return program.read_bytes()


def write_image(
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
