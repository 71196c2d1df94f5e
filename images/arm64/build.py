# SPDX-License-Identifier: Apache-2.0
"""Build the plugin's container image and write it as an archive that `docker load` of any engine reads."""

import argparse
import gzip
import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from images.arm64.base import base_image
from tests.lab import engine
from tests.lab.paths import cached
from tests.lab.process import LabError, run, say, step

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
NAME = "tegra-device-plugin"
# Platform tags of the wheels to take: glibc 2.28 is older than that of every base in use, 2014 is 2.17.
WHEEL_PLATFORMS = {
    "arm64": ("manylinux_2_28_aarch64", "manylinux2014_aarch64"),
    "amd64": ("manylinux_2_28_x86_64", "manylinux2014_x86_64"),
}
# The base's Python: wheels and bytecode are made for it.
PYTHON = (3, 11)
METADATA = ("pyproject.toml", "README.md", "LICENSE")


def version() -> str:
    """Return the version of the plugin, from pyproject.toml."""
    return str(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"])


def reference() -> str:
    """Return the image's name and tag."""
    return f"{NAME}:{version()}"


def sources() -> list[Path]:
    """Return every file of the checkout that the image is made of."""
    package = sorted((CHECKOUT / "plugin" / "tegra_device_plugin").rglob("*"))
    return [
        *(CHECKOUT / name for name in METADATA),
        *(path for path in package if path.is_file() and path.suffix != ".pyc"),
    ]


def install_app(arch: str, target: Path) -> None:
    """Unpack the locked wheels for `arch` and the plugin into `target`; runs no code of that architecture."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-compile", "--target", str(target)]
    wheels = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON[0]}.{PYTHON[1]}"]
    wheels += [f"--platform={tag}" for tag in WHEEL_PLATFORMS[arch]]
    run([*pip, *wheels, "--require-hashes", "--requirement", HERE / "requirements.txt"])
    with tempfile.TemporaryDirectory() as scratch:
        # A copy, because setuptools writes its build and egg-info directories beside the sources.
        for path in sources():
            copy = Path(scratch, path.relative_to(CHECKOUT))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        run([*pip, scratch])
    if sys.version_info[:2] == PYTHON:
        # "unchecked": valid whatever the file times are, as a read-only root cannot be rewritten anyway.
        run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", target])
    else:
        say("the image goes without bytecode (slower start): only Python 3.11 can make it, this is another")


def build(arch: str, out: Path, base: str | None = None) -> Path:
    """Build the image for `arch` (`arm64` or `amd64`) and write its archive to `out`.

    Unchanged sources are built once, see tests/lab/paths.py.

    `base` is an image that has Python 3.11 and libstdc++; without it one is made of Debian packages.
    Raises LabError when the engine, pip or the base fails.
    """
    engine.ensure()
    base = base or base_image(arch)
    recipe = hashlib.sha256(f"{arch} {base}".encode())
    for path in (HERE / "Dockerfile", HERE / "requirements.txt", Path(__file__), *sources()):
        recipe.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    archive = cached(
        f"images/{NAME}-{arch}-{recipe.hexdigest()[:12]}.tar.gz", lambda path: _build(arch, base, path)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    shutil.copyfile(archive, partial)
    return partial.replace(out)


def _build(arch: str, base: str, out: Path) -> None:
    with tempfile.TemporaryDirectory() as directory, step(f"building {reference()} for {arch} on {base}"):
        install_app(arch, Path(directory, "app"))
        shutil.copy(HERE / "Dockerfile", directory)
        arguments = [f"--build-arg={key}={value}" for key, value in (("BASE", base), ("VERSION", version()))]
        platform = f"--platform=linux/{arch}"
        run(["docker", "build", "--quiet", platform, "--tag", reference(), *arguments, directory])
    built = run(["docker", "image", "inspect", "--format={{.Architecture}}", reference()]).stdout.strip()
    if built != arch:
        raise LabError(f"the engine built {reference()} for {built}, not for {arch}: is {base} for {arch}?")
    _save(out)


def _save(out: Path) -> None:
    with (
        subprocess.Popen(["docker", "save", reference()], stdout=subprocess.PIPE) as save,
        out.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
    ):
        shutil.copyfileobj(save.stdout, packed)  # type: ignore[arg-type]  # PIPE makes it a file
    if save.returncode != 0:
        raise LabError(f"docker save {reference()}: exit status {save.returncode}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m images.arm64.build", description=__doc__)
    parser.add_argument(
        "--arch", choices=sorted(WHEEL_PLATFORMS), default="arm64", help="default: %(default)s"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("dist"), help="directory of the archive (default: %(default)s)"
    )
    parser.add_argument(
        "--base",
        help="base image that has Python 3.11 and libstdc++, such as python:3.11-slim-bookworm"
        " (default: one made of Debian packages, needs no registry)",
    )
    options = parser.parse_args()
    try:
        archive = build(options.arch, options.output / f"{NAME}-{options.arch}.tar.gz", options.base)
    except LabError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    say(f"{reference()}, {archive.stat().st_size / 1e6:.1f} MB: docker load --input {archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
