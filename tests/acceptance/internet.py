# SPDX-License-Identifier: Apache-2.0
"""What a site with Internet reaches, on this machine: K3s' release page, and a registry."""

import functools
import hashlib
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.lab import inventory, workloads
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tools import debian
from tools.engine import docker

CONFIG = "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {root}}}}}\nhttp: {{addr: ':{port}'}}\n"
START_SECONDS = 30


@dataclass(frozen=True)
class Registry:
    """A registry of this machine; its own engine pushes to it."""

    port: int

    def push(self, archive: Path, image: str, name: str) -> str:
        """Load an archive, push its image under another name, and return the digest."""
        there = f"localhost:{self.port}/{name}"
        docker("load", "--input", archive)
        docker("tag", image, there)
        docker("push", "--quiet", there)
        digest = docker("image", "inspect", "--format={{index .RepoDigests 0}}", there).partition("@")[2]
        docker("image", "rm", there)
        return digest


@contextmanager
def registry(directory: Path) -> Iterator[Registry]:
    """Debian's registry, on all addresses of this machine."""
    program = debian.program("docker-registry", "/usr/bin/docker-registry", ARCH)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    config = directory / "registry.yml"
    config.write_text(CONFIG.format(root=directory / "registry", port=port))
    with (directory / "registry.log").open("w") as log:
        serving = subprocess.Popen([program, "serve", config], stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://localhost:{port}/v2/", timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (directory / "registry.log").read_text()
                time.sleep(0.1)
        yield Registry(port)
    finally:
        serving.terminate()
        serving.wait()


@contextmanager
def release_page(directory: Path, executable: Path, version: str) -> Iterator[int]:
    """A page with this K3s as a release; the port is of all addresses of this machine."""
    release = directory / version
    release.mkdir(parents=True)
    shutil.copy(executable, release / "k3s")
    digest = hashlib.sha256(executable.read_bytes()).hexdigest()
    (release / f"sha256sum-{ARCH}.txt").write_text(f"{digest}  k3s\n")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=directory)
    with ThreadingHTTPServer(("", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def internet(lab: str, board: Board, directory: Path) -> Iterator[tuple[Registry, dict[str, Any]]]:
    """A registry that has K3s' images, and the variables with which boards of a lab find it and K3s."""
    host = f"{board.address.rpartition('.')[0]}.1"
    bundle = inventory.bundle_path(lab)
    version = yaml.safe_load((bundle / "bundle.yml").read_text())["k3s_version"]
    with (
        registry(directory) as found,
        release_page(directory / "releases", bundle / f"k3s-{ARCH}", version) as page,
    ):
        found.push(workloads.pause_archive(), workloads.PAUSE_IMAGE, workloads.PAUSE_IMAGE)
        mirror = f"{host}:{found.port}"
        yield (
            found,
            {
                "k3s_version": version,
                "__k3s_release_url": f"http://{host}:{page}",
                "nvidia_docker_daemon_config": {
                    "insecure-registries": [mirror],
                    "registry-mirrors": [f"http://{mirror}"],
                },
            },
        )
