# SPDX-License-Identifier: Apache-2.0
"""SIMULATED workloads: images of pause and of NVIDIA's deviceQuery sample, with programs of the lab's own."""

import hashlib
from pathlib import Path

from tests.lab import archive
from tests.lab.debian import ensure_packages, unpack
from tests.lab.engine import LABEL
from tests.lab.paths import cached
from tests.lab.process import run, step

ARCH = "amd64"
SOURCES = Path(__file__).parent / "simulated_workloads"
# The name that a kubelet of Kubernetes 1.20 asks for.
PAUSE_IMAGE = "k8s.gcr.io/pause:3.2"
DEVICE_QUERY_REPOSITORY = "device-query-sim"
# What a person or a test uses inside the deviceQuery container.
TOOLS = ("sh", "ls", "cat", "env", "sleep", "grep", "stat", "head", "id", "true", "false", "date", "wc")


def pause_archive() -> Path:
    """Return the cached archive of the simulated pause image, `PAUSE_IMAGE`."""
    return _archive("pause")


def device_query_archive() -> Path:
    """Return the cached archive of the simulated deviceQuery image, `device_query_image()`."""
    return _archive("device-query")


def device_query_image() -> str:
    """Return the name of the deviceQuery image; one serves every board, the tag is a hash of its recipe."""
    return f"{DEVICE_QUERY_REPOSITORY}:{_recipe()}"


def _recipe() -> str:
    parts = (Path(__file__), Path(archive.__file__), *sorted(SOURCES.glob("*.c")))
    return hashlib.sha256(b"\0".join(part.read_bytes() for part in parts)).hexdigest()[:12]


def _archive(name: str) -> Path:
    return cached(f"workloads/{_recipe()}", _build) / f"{name}.tar.gz"


def _build(out: Path) -> None:
    out.mkdir()
    with step("building the simulated workloads (pause, deviceQuery)"):
        labels = {"Labels": {f"{LABEL}.image": "SIMULATED"}}
        pause = {"Entrypoint": ["/pause"], **labels}
        archive.write(
            out / "pause.tar.gz", [PAUSE_IMAGE], ARCH, pause, {"pause": _compile("pause.c", out.parent)}
        )

        unpack("busybox-static", out.parent / "busybox")
        files: dict[str, bytes | str] = {
            "usr/local/bin/deviceQuery": _compile("device_query.c", out.parent),
            "bin/busybox": (out.parent / "busybox/bin/busybox").read_bytes(),
            **{f"bin/{tool}": "busybox" for tool in TOOLS},
        }
        query = {"Cmd": ["deviceQuery"], "Env": ["PATH=/usr/local/bin:/bin"], **labels}
        archive.write(out / "device-query.tar.gz", [device_query_image()], ARCH, query, files)


def _compile(source: str, scratch: Path) -> bytes:
    """Return a static program for this machine's architecture."""
    ensure_packages("gcc", "libc6-dev")
    program = scratch / Path(source).stem
    run(["gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCES / source])
    return program.read_bytes()
