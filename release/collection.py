# SPDX-License-Identifier: Apache-2.0
"""Build the Ansible collection jetson_k3s.cluster, without network. The same files give the same bytes.

The checkout is the collection: `ansible-galaxy collection build` makes it from galaxy.yml. Here only files
that git knows take part, so that nothing of a user gets into the archive: no inventory with passwords.
"""

import argparse
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from release.version import CHECKOUT, current
from tools.process import ToolError, run

NAME = "jetson_k3s.cluster"


def copy_tracked(target: Path) -> None:
    """Copy the files of the checkout that git knows, as they are now; links stay links."""
    for name in run(["git", "ls-files", "-z"], cwd=CHECKOUT).stdout.split("\0"):
        source = CHECKOUT / name
        if name and (source.is_file() or source.is_symlink()):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name, follow_symlinks=False)


def normalise(archive: Path) -> None:
    """Write the archive again without what differs from build to build: times, and the order of files."""
    with tarfile.open(archive) as tar:
        contents = {
            member: file.read() if member.isreg() and (file := tar.extractfile(member)) else b""
            for member in tar.getmembers()
        }
    named = {member.name: member for member in contents}
    files, manifest = (json.loads(contents[named[name]]) for name in ("FILES.json", "MANIFEST.json"))
    files["files"].sort(key=lambda entry: entry["name"])
    contents[named["FILES.json"]] = listing = json.dumps(files, indent=1).encode()
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(listing).hexdigest()
    contents[named["MANIFEST.json"]] = json.dumps(manifest, indent=1).encode()
    with (
        archive.open("wb") as packed,
        gzip.GzipFile("", "wb", 9, packed, mtime=0) as plain,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for _, member in sorted(named.items()):
            member.mtime, member.size, member.pax_headers = 0, len(contents[member]), {}
            tar.addfile(member, io.BytesIO(contents[member]))


def build(output: Path) -> Path:
    """Build the collection's archive into the directory `output`; return its path. Raises ToolError."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jetson-k3s-collection-") as directory:
        copy_tracked(Path(directory))
        galaxy = Path(sys.executable).with_name("ansible-galaxy")
        where = f"--output-path={output.resolve()}"
        run([galaxy, "collection", "build", "--force", where], cwd=Path(directory))
    archive = output / f"{NAME.replace('.', '-')}-{current()}.tar.gz"
    normalise(archive)
    return archive


def main() -> int:
    """Build, and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m release.collection", description=__doc__)
    parser.add_argument("--output", type=Path, default=CHECKOUT / "dist", help="directory (default: dist)")
    output = parser.parse_args().output
    try:
        sys.stdout.write(f"{build(output)}\n")
    except ToolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
