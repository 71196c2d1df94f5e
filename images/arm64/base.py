# SPDX-License-Identifier: Apache-2.0
"""The image's base where no registry can be reached: Debian's Python and nothing else, for any architecture.

Debian packages are unpacked, not installed (`mmdebstrap --variant=extract`), so no code of the target
architecture runs. `docker import` of engine 20.10 labels every image with the build machine's architecture,
therefore the image is written as an archive that says its own, and loaded.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.lab.debian import SUITE, ensure_packages, sources_list
from tests.lab.paths import cached
from tests.lab.process import run, step

# libstdc++6 is for grpcio; the rest is Python with its whole standard library.
PACKAGES = ("python3-minimal", "libpython3.11-stdlib", "libstdc++6")
UNUSED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def base_image(arch: str) -> str:
    """Return the name of the Debian-made base image for `arch`, built and loaded when absent."""
    recipe = json.dumps([SUITE, arch, PACKAGES, UNUSED])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    name = f"jetson-k3s-python-base:{arch}-{digest}"
    if run(["docker", "image", "inspect", name], check=False).returncode != 0:
        archive = cached(f"images/python-base-{arch}-{digest}.tar", lambda out: _build(arch, name, out))
        run(["docker", "load", "--input", archive])
    return name


def _build(arch: str, name: str, out: Path) -> None:
    ensure_packages("mmdebstrap", "debian-archive-keyring")
    rootfs = out.with_name("rootfs.tar")
    with step(f"unpacking Debian's Python for {arch}"):
        run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=extract",
                f"--architectures={arch}",
                f"--include={','.join(PACKAGES)}",
                '--aptopt=Acquire::Languages "none"',
                *(f"--dpkgopt=path-exclude={pattern}" for pattern in UNUSED),
                SUITE,
                rootfs,
                "-",
            ],
            stdin=sources_list(),
        )
    _write_archive(out, name, arch, rootfs)


def _write_archive(out: Path, name: str, arch: str, layer: Path) -> None:
    """Write a one-layer image in the format of `docker save` (Docker image specification v1.2)."""
    with layer.open("rb") as file:
        layer_digest = hashlib.file_digest(file, "sha256").hexdigest()
    platform = {"architecture": arch, "os": "linux"} | ({"variant": "v8"} if arch == "arm64" else {})
    config = json.dumps(
        {**platform, "config": {}, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]}},
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(out, "w") as archive:
        archive.add(layer, "layer.tar")
        for entry, data in ((config_name, config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
