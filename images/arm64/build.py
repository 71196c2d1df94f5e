# SPDX-License-Identifier: Apache-2.0
"""Build the plugin image for arm64 and amd64: one OCI archive of both, a `docker load` archive of each."""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.arm64 import builder, context, emulation, gpu_limit, pack, sbom
from images.arm64.context import CHECKOUT, HERE
from release import identity, version
from tools.cache import cached, place
from tools.debian import can_unpack
from tools.process import ToolError, run, say, step

NAME = "tegra-device-plugin"
ARCHITECTURES = ("arm64", "amd64")
PULLED_BASE = "docker.io/library/python:3.11-slim-bookworm"
# Where the sources are no git checkout but those of sources.py: their revision.
REVISION = ".image-revision"


@dataclass(frozen=True)
class Revision:
    """Which sources an image is made of: a git revision, and the time all its files get (Unix seconds)."""

    id: str
    moment: int


def reference() -> str:
    """Return the image's name and tag."""
    return f"{NAME}:{version.current()}"


def sources() -> list[Path]:
    """Return every file of the checkout that the image depends on."""
    own = sorted(path for path in HERE.iterdir() if path.is_file() and path.suffix != ".md")
    return [*context.plugin_sources(), *gpu_limit.sources(), *own]


def revision() -> Revision:
    """Return the newest commit that changed a source, so that other commits leave the image as it is.

    The time is $SOURCE_DATE_EPOCH, else the commit's, else 0. Without git or outside a git checkout the
    revision is `unknown`, unless the sources bring it.
    """
    if (CHECKOUT / REVISION).exists():
        return Revision(**json.loads((CHECKOUT / REVISION).read_text()))
    moment = os.environ.get("SOURCE_DATE_EPOCH")
    if not shutil.which("git"):
        return Revision("unknown", int(moment or 0))
    paths = [path.relative_to(CHECKOUT) for path in sources()]
    git = ["git", "-C", str(CHECKOUT)]
    found = run([*git, "log", "-1", "--format=%H %ct", "--", *paths], check=False).stdout.split()
    commit, committed = found if len(found) == 2 else ("unknown", "0")  # noqa: PLR2004 - the two of --format
    if run([*git, "status", "--porcelain", "--", *paths], check=False).stdout:
        commit += "-dirty"
    return Revision(commit, int(moment or committed))


def build(arch: str, out: Path, base: str | None = None) -> Path:
    """Build the image for `arch` (`arm64` or `amd64`) and write its archive for `docker load` to `out`.

    Unchanged sources are built once, see tools/cache.py. `base` is an image that has Python 3.11 and
    libstdc++; without it one is made of Debian packages, or pulled where mmdebstrap cannot be had. Raises
    ToolError when builder, pip or base fail.
    """
    place(_built(arch, base) / "image.tar.gz", out)
    return out


def build_all(directory: Path, base: str | None = None) -> Path:
    """Build for every architecture; write all files into a directory; return the OCI archive."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        images = []
        for arch in ARCHITECTURES:
            built = _built(arch, base)
            docker = directory / f"{NAME}-{arch}.tar.gz"
            place(built / "image.tar.gz", docker)
            place(built / "sbom.spdx.json", directory / f"{NAME}-{arch}.spdx.json")
            image = pack.read_docker_archive(docker, Path(scratch, f"{arch}.tar"))
            say(
                f"{arch}: image id {image.digest}, {docker.stat().st_size / 1e6:.1f} MB packed, "
                f"{image.layer.stat().st_size / 1e6:.1f} MB unpacked: docker load --input {docker}"
            )
            images.append(image)
        archive = directory / f"{NAME}.oci.tar"
        digest = pack.write_oci_archive(archive, images, reference())
    say(f"{', '.join(ARCHITECTURES)}: index {digest}, {archive.stat().st_size / 1e6:.1f} MB: {archive}")
    return archive


def _built(arch: str, base: str | None) -> Path:
    """Return the cached directory with `image.tar.gz` and `sbom.spdx.json`."""
    base = base or (None if can_unpack() else PULLED_BASE)
    made = revision()
    recipe = hashlib.sha256(f"{arch} {base} {made} {gpu_limit.entry(arch)}".encode())
    for path in sources():
        recipe.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    entry = f"images/{NAME}-{arch}-{recipe.hexdigest()[:12]}"
    return cached(entry, lambda out: _build(arch, base, made, out))


def _build(arch: str, base: str | None, made: Revision, out: Path) -> None:
    tool = builder.find()
    machine = builder.machine_arch()
    target_base = base or tool.debian_base(arch)
    arguments = {
        "BASE": target_base,
        # Podman calls an image that comes from a file so.
        "BASE_NAME": target_base.removeprefix("localhost/"),
        "TOOLS": base or tool.debian_base(machine),
        "TARGETPLATFORM": f"linux/{arch}",
        "BUILDPLATFORM": f"linux/{machine}",
        "VERSION": version.current(),
        "REVISION": made.id,
        "CREATED": pack.timestamp(made.moment),
        "SOURCE": identity.address(identity.owner()),
    }
    out.mkdir()
    with (
        tempfile.TemporaryDirectory(dir=out.parent) as scratch,
        step(f"building {reference()} for {arch} on {arguments['BASE']} with {tool.name}"),
    ):
        prepared, saved, layer = (Path(scratch, name) for name in ("context", "saved.tar", "layer.tar"))
        context.write(prepared, arch, made.id)
        tool.build(prepared, "plugin", arguments, saved)
        with pack.opened_docker_archive(saved) as (_, config, layers):
            settings = _settings(config)
            pack.normalise(layers, layer, made.moment)
        image = pack.image(arch, settings, layer, created=made.moment, names=[reference()])
        pack.write_docker_archive(out / "image.tar.gz", [image])
        sbom.write(out / "sbom.spdx.json", image, reference(), made.moment)


def _settings(config: bytes) -> dict[str, Any]:
    """Return the Dockerfile's settings, without those of the builder, and without empty labels."""
    said = json.loads(config)["config"]
    labels = {
        key: value for key, value in said["Labels"].items() if value and key.startswith("org.opencontainers.")
    }
    return {key: said[key] for key in ("Env", "Entrypoint", "Cmd")} | {"Labels": labels}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m images.arm64.build", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("dist"), help="directory of the archives (default: %(default)s)"
    )
    parser.add_argument(
        "--base",
        help="base image that has Python 3.11 and libstdc++ for every architecture, such as "
        f"{PULLED_BASE} (default: one made of Debian packages; where these cannot be had, that one)",
    )
    parser.add_argument("--only", choices=ARCHITECTURES, help="only the `docker load` archive for this one")
    options = parser.parse_args()
    try:
        if options.only:
            build(options.only, options.output / f"{NAME}-{options.only}.tar.gz", options.base)
            return 0
        build_all(options.output, options.base)
    except ToolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for arch in ARCHITECTURES:
        if not emulation.can_run(arch):
            say(f"{arch} was built without emulation, but does not run here; {emulation.how_to(arch)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
