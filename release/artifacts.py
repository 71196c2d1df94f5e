# SPDX-License-Identifier: Apache-2.0
"""Build everything that a release consists of into one directory, with bundle.yml and SHA256SUMS.

The same commit gives the same bytes: `git switch --detach v0.2.0`, and build them again to compare.
"""

import argparse
import gzip
import io
import json
import os
import signal
import sys
import tarfile
import tempfile
from pathlib import Path

from images.arm64 import build, context
from release import collection
from release.version import CHECKOUT, current
from tools.process import ToolError, run, step

# The boards' image is the one that a bundle is described by.
ARCH = "arm64"


def build_all(output: Path) -> None:
    """Build images, collection, wheel, chart and the index of them into `output`, a directory without files.

    Raises ToolError when there are some, or a step fails.
    """
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise ToolError(f"{output} is not empty: its files would become part of the release")
    build.build_all(output)
    with step("building the collection"):
        collection.build(output)
    with step("building the wheel"):
        wheel(output)
    chart(output)
    index(output)


def wheel(output: Path) -> None:
    """Build the plugin's wheel with this environment's setuptools, whose version the lists have."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(build.revision().moment)}
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as sources:
        context.copy_plugin(Path(sources))
        options = ["--no-deps", "--no-build-isolation", f"--wheel-dir={output}"]
        run([*pip, *options, sources], env=environment)


def chart(output: Path) -> Path:
    """Pack the Helm chart as `helm package` does; return its path. The same files give the same bytes."""
    name, source = "tegra-device-plugin", CHECKOUT / "plugin" / "deploy" / "chart"
    archive = output / f"{name}-{current()}.tgz"
    with (
        archive.open("wb") as packed,
        gzip.GzipFile("", "wb", 9, packed, mtime=0) as plain,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        # Chart.yaml comes first: sorted by name it does.
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            content = path.read_bytes()
            member = tarfile.TarInfo(f"{name}/{path.relative_to(source)}")
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    return archive


def index(output: Path) -> None:
    """Have the role bundle's module write bundle.yml and SHA256SUMS over all that is there."""
    ansible = Path(sys.executable).with_name("ansible")
    arguments = json.dumps({"path": str(output), "arch": ARCH})
    module = f"--module-name={collection.NAME}.bundle_index"
    run([ansible, "localhost", module, f"--args={arguments}"], cwd=CHECKOUT)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m release.artifacts", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="directory, empty or new")
    output = parser.parse_args().output.resolve()
    # As with Ctrl-C: what runs below is ended too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The wheel has its files' modes in it.
    os.umask(0o022)
    try:
        build_all(output)
    except ToolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
