# SPDX-License-Identifier: Apache-2.0
"""Pack what builds the plugin's image, so that another computer without this checkout can build it."""

import argparse
import dataclasses
import io
import json
import sys
import tarfile
from pathlib import Path

from images.arm64 import build
from tools.cache import CHECKOUT

# Beside the sources of the image: the programs that build it, and the wheels that they need.
BUILDERS = (
    "images/arm64/*.py",
    "release/__init__.py",
    "release/identity.py",
    "release/version.py",
    "tools/*.py",
    "tools/bootstrap.sh",
    "tools/requirements/image.txt",
)


def files() -> list[Path]:
    """Return all files, relative to the checkout."""
    found = {*build.sources(), *(path for pattern in BUILDERS for path in CHECKOUT.glob(pattern))}
    return sorted(path.relative_to(CHECKOUT) for path in found)


def write(archive: Path) -> None:
    """Write a tar of them, with the revision that git knows here."""
    revision = json.dumps(dataclasses.asdict(build.revision())).encode()
    # Links lead to files of the collection, which the board does not get.
    with tarfile.open(archive, "w", dereference=True) as tar:
        member = tarfile.TarInfo(build.REVISION)
        member.size = len(revision)
        tar.addfile(member, io.BytesIO(revision))
        for path in files():
            tar.add(CHECKOUT / path, path, filter=_roots)


def _roots(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same file, owned by root wherever it is unpacked."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m images.arm64.sources", description=__doc__)
    parser.add_argument("archive", type=Path, help="the tar to write")
    write(parser.parse_args().archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
