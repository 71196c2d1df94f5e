# SPDX-License-Identifier: Apache-2.0
"""Machines with a SIMULATED Tegra and a real CDI reader.

That is Debian's Podman, which has CDI's own library inside, with crun.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tegra_device_plugin.board import cdi
from tegra_device_plugin.board.detection import detect
from tegra_device_plugin.system.hosttree import HostTree

from tests import boards
from tests.lab import board, images
from tests.lab.workloads import device_query_archive, device_query_image
from tools import engine
from tools.engine import LABEL, docker
from tools.process import run

LAB = "cdi"
BOARDS = ("nano-jp4", "xaviernx-jp5", "orinnano-jp6", "thor5000-jp70")
# Podman inside a container, past what a nested one cannot have: overlays, a network, cgroups of its own.
PODMAN = (
    "podman",
    "--storage-driver=vfs",
    "--events-backend=none",
    "--cgroup-manager=cgroupfs",
    "--runtime=crun",
)
NESTED = ("--network=none", "--cgroups=disabled")
# The program of the hooks is NVIDIA's; this STAND-IN writes its arguments down.
# Like NVIDIA's it reads the container's state: a hook that ends before crun has written it fails the
# container.
NVIDIA_CTK = '#!/bin/sh\ncat > /dev/null\necho "$*" >> /hooks\n'


@dataclass(frozen=True)
class Reader:
    """A machine whose Podman finds the plugin's spec where the plugin writes it."""

    container: str
    fixture: boards.Fixture
    spec: dict[str, Any]

    def sh(self, command: str) -> str:
        """Run a shell command on the machine; it must succeed."""
        return docker("exec", self.container, "sh", "-ec", command)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the simulated deviceQuery in a container, with these options of `podman run`."""
        podman = [*PODMAN, "run", "--rm", *NESTED, *options, f"localhost/{device_query_image()}"]
        return run(["docker", "exec", self.container, *podman], check=False)

    def runtime_spec(self, device: str) -> dict[str, Any]:
        """Give the OCI runtime specification of a container that asks for a CDI device."""
        podman = " ".join(PODMAN)
        create = f"{podman} create {' '.join(NESTED)} --device={device} localhost/{device_query_image()}"
        # Podman reads CDI specs when it makes the runtime's, which `init` does.
        container = self.sh(f"container=$({create}); {podman} init $container >/dev/null; echo $container")
        try:
            where = f"{podman} container inspect --format='{{{{.OCIConfigPath}}}}' {container}"
            return dict(json.loads(self.sh(f"cat $({where})")))
        finally:
            self.sh(f"{podman} rm --force {container}")


@pytest.fixture(scope="session")
def start_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Reader]]:
    """Start a machine for a board of boards.json, once each."""
    engine.ensure()
    readers: dict[str, Reader] = {}

    def start(board_id: str) -> Reader:
        if board_id not in readers:
            readers[board_id] = _start(board_id, tmp_path_factory.mktemp(board_id) / "host")
        return readers[board_id]

    yield start
    left = docker("ps", "--all", "--quiet", f"--filter=label={LABEL}={LAB}").split()
    if left:
        docker("rm", "--force", "--volumes", *left)


def _start(board_id: str, tree: Path) -> Reader:
    fixture = boards.load()[board_id]
    boards.build(fixture, tree, nodes="char")
    boards.write_run(tree)
    cdi.write(tree, detect(tree).gpu.device_nodes)  # as the plugin does before it advertises
    capabilities = [f"--cap-add={name}" for name in board.CAPABILITIES]
    unconfined = [f"--security-opt={option}=unconfined" for option in ("seccomp", "apparmor", "systempaths")]
    places = [f"--tmpfs={place}" for place in ("/run:exec", "/var/lib/containers:exec")]
    container = docker(
        "run", "--detach", "--pull=never", f"--label={LABEL}={LAB}", "--network=none",
        "--device-cgroup-rule=a *:* rwm", *capabilities, *unconfined, *places,
        images.cdi_reader_image(), "sleep", "infinity",
    )  # fmt: skip
    reader = Reader(container, fixture, json.loads(Path(HostTree(tree).real(cdi.SPEC_FILE)).read_text()))
    docker("cp", "--archive", f"{tree}/.", f"{container}:/tree")
    # Below /dev and /run only the machine itself can copy.
    reader.sh("cd /tree; cp -a dev etc usr /; mkdir -p /run/cdi; cp -a run/cdi/. /run/cdi/")
    reader.sh(f"printf '%s' '{NVIDIA_CTK}' > /usr/bin/nvidia-ctk; chmod +x /usr/bin/nvidia-ctk")
    docker("cp", device_query_archive(), f"{container}:/image.tar.gz")
    reader.sh(f"gunzip /image.tar.gz; {' '.join(PODMAN)} load --quiet --input=/image.tar")
    return reader


@pytest.fixture(params=BOARDS)
def reader(request: pytest.FixtureRequest, start_reader: Callable[[str], Reader]) -> Reader:
    """Each board."""
    return start_reader(request.param)
