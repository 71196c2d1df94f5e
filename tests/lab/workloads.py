# SPDX-License-Identifier: Apache-2.0
"""SIMULATED workloads: images of pause and of NVIDIA's deviceQuery sample, and CUDA's driver."""

import hashlib
import tarfile
from pathlib import Path

from images.arm64 import compiler, gpu_limit
from tests.lab import archive
from tools.cache import cached
from tools.debian import EXCLUDED, mmdebstrap
from tools.engine import LABEL
from tools.process import run, step

DEFAULT_ARCH = "amd64"  # of container boards
SOURCES = Path(__file__).parent / "simulated_workloads"
LIBCUDA_SOURCES = (SOURCES / "libcuda.c", SOURCES / "ptx.c")
LIBCUDA_FLAGS = (
    *("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"),
    "-Wl,-soname,libcuda.so.1",
)
# The name that K3s asks for.
PAUSE_IMAGE = "rancher/mirrored-pause:3.6"
DEVICE_QUERY_REPOSITORY = "device-query-sim"
# What a person or a test uses inside the deviceQuery container.
TOOLS = ("sh", "ls", "cat", "env", "sleep", "grep", "stat", "head", "id", "true", "false", "date", "wc")


def pause_archive(arch: str = DEFAULT_ARCH) -> Path:
    return _archive("pause", arch)


def device_query_archive(arch: str = DEFAULT_ARCH) -> Path:
    return _archive("device-query", arch)


def device_query_image() -> str:
    """Return the name of the deviceQuery image; one serves every board, the tag is a hash of its recipe."""
    return f"{DEVICE_QUERY_REPOSITORY}:{_recipe()}"


def libcuda(release: str, arch: str = DEFAULT_ARCH) -> Path:
    major, _, minor = release.partition(".")
    # Drivers before CUDA 12 have the older table of symbols only.
    hashes = "both" if int(major) >= 12 else "sysv"
    headers = (SOURCES / "ptx.h", gpu_limit.SOURCES / "driver_api.h")
    read = b"\0".join(path.read_bytes() for path in (*LIBCUDA_SOURCES, *headers))
    recipe = hashlib.sha256(read + " ".join(LIBCUDA_FLAGS).encode())

    def build(out: Path) -> None:
        out.mkdir()
        flags = [
            *LIBCUDA_FLAGS,
            f"-DCUDA={int(major) * 1000 + int(minor) * 10}",
            f"-Wl,--hash-style={hashes}",
        ]
        gcc = compiler.tool("gcc", arch)
        run([gcc, *flags, "-o", out / "libcuda.so.1", *LIBCUDA_SOURCES, "-ldl", "-lpthread"])

    return cached(f"workloads/libcuda-{release}-{arch}-{recipe.hexdigest()[:12]}", build)


def _recipe() -> str:
    parts = (Path(__file__), Path(archive.__file__), SOURCES / "pause.c", SOURCES / "device_query.c")
    return hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()[:12]


def _archive(name: str, arch: str) -> Path:
    return cached(f"workloads/{_recipe()}-{arch}", lambda out: _build(out, arch)) / f"{name}.tar.gz"


def _build(out: Path, arch: str) -> None:
    out.mkdir()
    scratch = out.parent
    with step(f"building the simulated workloads (pause, deviceQuery) for {arch}"):
        labels = {"Labels": {f"{LABEL}.image": "SIMULATED"}}
        pause = {"Entrypoint": ["/pause"], **labels}
        program = {"pause": _compile("pause.c", scratch, arch)}
        archive.write(out / "pause.tar.gz", [PAUSE_IMAGE], arch, pause, program)

        files: dict[str, bytes | str] = {
            "usr/local/bin/deviceQuery": _compile("device_query.c", scratch, arch),
            "bin/busybox": _busybox(scratch / "busybox.tar", arch),
            **{f"bin/{tool}": "busybox" for tool in TOOLS},
        }
        query = {"Cmd": ["deviceQuery"], "Env": ["PATH=/usr/local/bin:/bin"], **labels}
        archive.write(out / "device-query.tar.gz", [device_query_image()], arch, query, files)


def _busybox(unpacked: Path, arch: str) -> bytes:
    mmdebstrap(unpacked, "extract", arch, ["busybox-static"], excluded=EXCLUDED)
    with tarfile.open(unpacked) as tar:
        program = tar.extractfile("./bin/busybox")
        assert program is not None
        return program.read()


def _compile(source: str, scratch: Path, arch: str) -> bytes:
    program = scratch / Path(source).stem
    gcc = compiler.tool("gcc", arch)
    run([gcc, "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCES / source])
    return program.read_bytes()
