# SPDX-License-Identifier: Apache-2.0
"""Measure the image: `python -m tests.image.measure` prints the numbers of docs/image.md.

Start and memory are of the plugin in its container with a fake kubelet outside. On a machine of another
architecture they are of QEMU and the plugin together, and say so.
"""

import asyncio
import io
import json
import statistics
import sys
import tarfile
import tempfile
import time
import uuid
from pathlib import Path

from images.arm64 import build, emulation
from tests import boards
from tests.conformance.fake_kubelet import FakeKubelet
from tests.image.conftest import RESTRICTED
from tools.engine import docker

RUNS = 5
BOARD = "orinnano-jp6"
# What a path in the layer belongs to; the first that fits counts.
PARTS = {
    "opt/tegra-device-plugin/grpc": "gRPC",
    "opt/tegra-device-plugin/google": "protobuf",
    "opt/tegra-device-plugin/yaml": "PyYAML with libyaml",
    "opt/tegra-device-plugin/tegra_device_plugin": "the plugin",
    "opt/": "other packages and metadata",
    "usr/bin/python3.11": "Python: interpreter",
    "usr/lib/python3.11": "Python: standard library",
    "lib": "shared libraries",
    "usr/lib": "shared libraries",
}


def sizes(archive: Path) -> dict[str, int]:
    """Return the bytes unpacked by part."""
    found: dict[str, int] = {}
    with tarfile.open(archive) as outer:
        (layer,) = (member for member in outer if member.name.endswith("layer.tar"))
        content = outer.extractfile(layer)
        with tarfile.open(fileobj=io.BytesIO(content.read() if content else b"")) as tar:
            for member in tar:
                part = next(
                    (PARTS[path] for path in PARTS if member.name.startswith(path)),
                    "licences, records, the rest",
                )
                found[part] = found.get(part, 0) + member.size
    return found


async def start_and_memory(arch: str, image: str) -> tuple[float, int]:
    """Return seconds from `docker run` until the kubelet has the GPU, and the process's resident KiB then."""
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        root, directory = Path(scratch, "host"), Path(scratch, "sockets")
        boards.build(boards.load()[BOARD], root)
        name = f"jetson-k3s-measure-{uuid.uuid4().hex[:8]}"
        mounts = (f"--volume={root}:/host:ro", f"--volume={directory}:/var/lib/kubelet/device-plugins")
        command = (
            "docker",
            "run",
            "--rm",
            f"--name={name}",
            f"--platform=linux/{arch}",
            *RESTRICTED,
            *mounts,
            image,
        )
        async with FakeKubelet(directory) as kubelet:
            begun = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *command, "run", "--host-root=/host", stderr=asyncio.subprocess.DEVNULL
            )
            try:
                await kubelet.until_allocatable(seconds=60)
                took = time.monotonic() - begun
                pid = docker("inspect", "--format={{.State.Pid}}", name)
                status = Path(f"/proc/{pid}/status").read_text()  # noqa: ASYNC240 - /proc is memory
                return took, int(status.partition("VmRSS:")[2].split()[0])
            finally:
                docker("stop", name)
                await process.wait()


def main() -> None:
    """Print what is measured, as Markdown."""
    with tempfile.TemporaryDirectory() as scratch:
        for arch in build.ARCHITECTURES:
            archive = build.build(arch, Path(scratch, f"{arch}.tar.gz"))
            emulation.ensure(arch)
            said = docker("load", "--input", archive).splitlines()[-1]
            image = said.partition(": ")[2]
            by_part = sizes(archive)
            measured = [asyncio.run(start_and_memory(arch, image)) for _ in range(RUNS)]
            docker("image", "rm", image)
            largest_first = sorted(by_part.items(), key=lambda part: -part[1])
            report = {
                "architecture": arch,
                "emulated": not emulation.native(arch),
                "packed_mb": round(archive.stat().st_size / 1e6, 1),
                "unpacked_mb": {part: round(size / 1e6, 1) for part, size in largest_first},
                "start_seconds_median": round(statistics.median(took for took, _ in measured), 2),
                "resident_mib_median": round(statistics.median(size for _, size in measured) / 1024, 1),
            }
            sys.stdout.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
