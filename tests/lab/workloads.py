# SPDX-License-Identifier: Apache-2.0
"""SIMULATED workloads: an image of pause, and CUDA's driver."""

import hashlib
from pathlib import Path

from images.arm64 import gpu_limit
from tests.lab import archive, compiler
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


def pause_archive(arch: str = DEFAULT_ARCH) -> Path:
    parts = (Path(__file__), Path(archive.__file__), SOURCES / "pause.c")
    recipe = hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()[:12]

    def build(out: Path) -> None:
        with step(f"building the simulated pause for {arch}"):
            settings = {"Entrypoint": ["/pause"], "Labels": {f"{LABEL}.image": "SIMULATED"}}
            archive.write(
                out, [PAUSE_IMAGE], arch, settings, {"pause": _compile("pause.c", out.parent, arch)}
            )

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
