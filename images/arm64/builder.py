# SPDX-License-Identifier: Apache-2.0
"""What executes the Dockerfile: the tool that this machine has, found and not assumed.

As a command it changes nothing: it prints the name of that tool, or ends with status 1.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from images.arm64.base import archive
from tools import engine
from tools.cache import locked
from tools.process import ToolError, run

# Stages that the classic builder and Podman leave behind carry it (see Dockerfile): so they are found.
STAGE_LABEL = "io.github.jetson-k3s.stage"


def available() -> str:
    """Return the name of the builder that find() would return, '' if it would find and install none."""
    if engine.answers():
        return "Docker"
    if shutil.which("podman"):
        return "Podman"
    return "Docker, which is installed first" if engine.can_be_installed() else ""


def find() -> Docker:
    """Return the builder of this machine: a Docker engine that answers, else Podman.

    Without any, Debian's engine is installed and started. Raises ToolError when that is not possible.
    """
    if not engine.answers() and shutil.which("podman"):
        return Podman()
    engine.ensure()
    return Docker()


class Docker:
    """`docker build`: buildx where its plugin is installed, the engine's classic builder elsewhere."""

    program = "docker"
    _options: tuple[str, ...] = ()

    def __init__(self) -> None:
        buildx = run(["docker", "buildx", "version"], check=False)
        found = buildx.returncode == 0
        self.name = f"docker buildx {buildx.stdout.split()[1]}" if found else "docker's classic builder"
        # Said, because a command line without buildx warns or refuses by itself, depending on its version.
        self._environment = {**os.environ, "DOCKER_BUILDKIT": str(int(found))}

    def debian_base(self, arch: str) -> str:
        """Return the name of the base that is made of Debian packages, loaded into the engine."""
        name, file = archive(arch)
        if run([self.program, "image", "inspect", name], check=False).returncode != 0:
            run([self.program, "load", "--input", file])
        return name

    def build(self, context: Path, target: str, args: Mapping[str, str], out: Path) -> None:
        """Build a stage of the Dockerfile, write it to `out` as `docker save` does, and remove it."""
        id_file = out.with_name(f"{out.name}.id")
        options = [*self._options, *(f"--build-arg={key}={value}" for key, value in args.items())]
        where = [f"--target={target}", f"--iidfile={id_file}"]
        # One at a time: what is removed at the end could be a stage that another build goes on from.
        with locked("image-build"):
            run([self.program, "build", *where, *options, context], env=self._environment)
            built = id_file.read_text().strip()
            try:
                run([self.program, "save", "--output", out, built])
            finally:
                run([self.program, "image", "rm", built], check=False)
                prune = ["image", "prune", "--force", f"--filter=label={STAGE_LABEL}"]
                run([self.program, *prune], check=False)


class Podman(Docker):
    """`podman build`, whose command line is Docker's."""

    program = name = "podman"
    # Podman 4.3 goes on from a cached LABEL although the argument in it has another value.
    _options = ("--no-cache",)

    def __init__(self) -> None:
        self._environment = {**os.environ}

    def debian_base(self, arch: str) -> str:
        """Load it; Podman calls an image that comes from a file so."""
        return f"localhost/{super().debian_base(arch)}"


def machine_arch() -> str:
    """Return this machine's architecture in container images' words."""
    names = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}  # macOS has another name for aarch64
    machine = os.uname().machine
    if machine not in names:
        raise ToolError(f"images are built on {' and '.join(names)} machines; this is {machine}")
    return names[machine]


def main() -> int:
    """Run the command."""
    found = available()
    if found:
        sys.stdout.write(f"{found}\n")
        return 0
    sys.stderr.write("error: this computer has neither Docker nor Podman that answers\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
