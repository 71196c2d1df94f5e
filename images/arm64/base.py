# SPDX-License-Identifier: Apache-2.0
"""The image's base where no registry can be reached: Debian's Python and nothing else, for any architecture.

Debian packages are unpacked, not installed (`mmdebstrap --variant=extract`), so no code of the target
architecture runs. `docker import` of engine 20.10 labels every image with the build machine's architecture,
therefore the image is written as an archive that says its own, and loaded.
"""

import hashlib
import json
from pathlib import Path

from images.arm64 import pack
from tools.cache import cached
from tools.debian import SUITE, mmdebstrap
from tools.process import step

# libstdc++6 is for grpcio; the rest is Python with its complete standard library.
PACKAGES = ("python3.11-minimal", "libpython3.11-stdlib", "libstdc++6")
UNUSED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/dev/*")
# The packages and their files, recorded as in distroless images, for scanners.
RECORD_PACKAGES = """
records="$1/var/lib/dpkg/status.d"
mkdir -p "$records"
for deb in "$1"/var/cache/apt/archives/*.deb; do
    name=$(dpkg-deb --field "$deb" Package)
    dpkg-deb --field "$deb" > "$records/$name"
    dpkg-deb --ctrl-tarfile "$deb" | tar --extract --to-stdout ./md5sums > "$records/$name.md5sums"
done
"""


def archive(arch: str) -> tuple[str, Path]:
    """Return the name of the Debian-made base for `arch` and its archive, built when absent."""
    recipe = json.dumps([SUITE, arch, PACKAGES, UNUSED, RECORD_PACKAGES])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    name = f"jetson-k3s-python-base:{arch}-{digest}"
    return name, cached(f"images/python-base-{arch}-{digest}.tar", lambda out: _build(arch, name, out))


def _build(arch: str, name: str, out: Path) -> None:
    rootfs = out.with_name("rootfs.tar")
    with step(f"unpacking Debian's Python for {arch}"):
        hooks = [f"--extract-hook={RECORD_PACKAGES}"]
        mmdebstrap(rootfs, "extract", arch, PACKAGES, excluded=UNUSED, hooks=hooks)
    pack.write_docker_archive(out, [pack.image(arch, {}, rootfs, created=0, names=[name])])
