# SPDX-License-Identifier: Apache-2.0
"""The built images, loaded into the engine under names of the tests' own, and a way to run them."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from images.arm64 import build, emulation, pack
from tools import engine
from tools.engine import LABEL, docker
from tools.process import run

REPOSITORY = "jetson-k3s-lab/image-test"
# As the DaemonSet runs it (plugin/deploy); the engine's default seccomp profile applies.
RESTRICTED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none")


@dataclass(frozen=True)
class Loaded:
    """An image in the engine; its archive is the one that boards load."""

    name: str
    arch: str
    archive: Path
    id: str

    def command(self, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        """Return the command line that runs the image once, as restricted as in the cluster."""
        start = ["docker", "run", "--rm", f"--platform=linux/{self.arch}", f"--label={LABEL}=image-test"]
        return [*start, *RESTRICTED, *options, self.name, *arguments]

    def run(self, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return run(self.command(*arguments, options=options), check=False, timeout=120)

    def python(self, program: str, *options: str) -> str:
        """Run a Python program inside and return its output; it must succeed."""
        inside = ("--interactive", "--entrypoint=python3.11", *options)
        # The other architecture's takes minutes on a busy machine.
        return run(self.command("-", options=inside), stdin=program, timeout=900).stdout

    def label(self, name: str) -> str:
        form = f'{{{{index .Config.Labels "org.opencontainers.image.{name}"}}}}'
        return docker("image", "inspect", f"--format={form}", self.name)


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Loaded]]:
    """Load the image for an architecture; each is loaded once."""
    loaded: dict[str, Loaded] = {}
    directory = tmp_path_factory.mktemp("images")
    engine.ensure()

    def get(arch: str) -> Loaded:
        if arch not in loaded:
            emulation.ensure(arch)
            name = f"{REPOSITORY}:{arch}"
            archive = build.build(arch, directory / f"{arch}.tar.gz")
            image = pack.read_docker_archive(archive, directory / "layer.tar")
            renamed = pack.Image([name], image.platform, image.config, image.layer)
            pack.write_docker_archive(directory / "renamed.tar", [renamed])
            run(["docker", "load", "--input", directory / "renamed.tar"])
            loaded[arch] = Loaded(name, arch, archive, image.digest)
        return loaded[arch]

    yield get
    for one in loaded.values():
        run(["docker", "image", "rm", one.name], check=False)


@pytest.fixture(scope="session", params=build.ARCHITECTURES)
def image(request: pytest.FixtureRequest, load: Callable[[str], Loaded]) -> Loaded:
    return load(request.param)
