# SPDX-License-Identifier: Apache-2.0
"""A site: its registry, K3s' release page, new images for its bundle, the traffic to its boards."""

import functools
import json
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from images.arm64 import pack
from tests.lab import board, bundle, inventory, workloads
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tools import debian
from tools.engine import docker
from tools.process import run

# Debian's registry, and what a board of the lab may lack of what it depends on.
REGISTRY_PACKAGES = ("docker-registry", "lsb-base")
CONFIG = "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {root}}}}}\nhttp: {{addr: ':{port}'}}\n"
START_SECONDS = 30


@dataclass(frozen=True)
class Brought:
    """An image in a bundle: its name, its id, and the bytes of its archive."""

    name: str
    image: str
    size: int


def crossed(lab: str) -> int:
    """Bytes so far between this machine and the boards of a lab, both ways.

    What boards send to each other crosses the bridge from port to port, and is no traffic of its interface.
    """
    network = docker("network", "inspect", "--format={{.Id}}", board.network_name(lab))
    statistics = Path(f"/sys/class/net/br-{network[:12]}/statistics")
    return sum(int((statistics / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def reindex(directory: Path) -> None:
    (directory / bundle.CHECKSUMS).write_text(bundle.checksums(directory))


def bring_registry(lab: str, jetpack: int) -> None:
    directory = inventory.bundle_path(lab)
    with tarfile.open(directory / f"debs-jetpack{jetpack}-{ARCH}.tar", "w") as tar:
        for deb in sorted(debian.package_files(*REGISTRY_PACKAGES).glob("*.deb")):
            tar.add(deb, deb.name)
    reindex(directory)


def bring_plugin(lab: str, tag: str) -> Brought:
    directory = inventory.bundle_path(lab)
    return _bring(
        directory, "plugin_image", f"tegra-device-plugin-{ARCH}.tar.gz", f"tegra-device-plugin:{tag}"
    )


def bring_pause(directory: Path, tag: str) -> Brought:
    """Put another pause image into a bundle, as the one of another K3s has it."""
    repository = workloads.PAUSE_IMAGE.rpartition(":")[0]
    return _bring(directory, "pause_image", f"k3s-airgap-images-{ARCH}.tar.gz", f"{repository}:{tag}")


def _bring(directory: Path, key: str, file: str, name: str) -> Brought:
    """Give an image of the bundle one file more in its layer, and another name."""
    archive = directory / file
    with tempfile.TemporaryDirectory() as scratch:
        layer = Path(scratch, "layer.tar")
        before = pack.read_docker_archive(archive, layer)
        with tarfile.open(layer, "a") as tar:
            tar.addfile(tarfile.TarInfo(f"etc/{name.rpartition(':')[2]}"))
        settings = json.loads(before.config)["config"]
        after = pack.image(ARCH, settings, layer, created=0, names=[name])
        pack.write_docker_archive(archive, [after])
    index = directory / "bundle.yml"
    described = yaml.safe_load(index.read_text()) | {key: name}
    index.write_text(yaml.safe_dump(described, sort_keys=False))
    reindex(directory)
    return Brought(name, after.digest, archive.stat().st_size)


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
def release_page(directory: Path) -> Iterator[int]:
    """A page with the releases of a directory; the port is of all addresses of this machine."""
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
def internet(lab: str, server: Board, directory: Path) -> Iterator[tuple[Registry, dict[str, Any]]]:
    """A registry that has K3s' images, and the variables with which boards of a lab find it and K3s."""
    host = f"{server.address.rpartition('.')[0]}.1"
    version = bundle.write_release(inventory.bundle_path(lab), directory / "releases")
    with registry(directory) as found, release_page(directory / "releases") as page:
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


def build_deb(directory: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Build a SIMULATED package; `files` are by their path in it, such as `DEBIAN/postinst`."""
    debian.ensure_packages("dpkg")
    tree = directory / f"{name}-{version}"
    fields = {"Package": name, "Version": version, "Architecture": "all", "Maintainer": "lab"}
    control = "".join(f"{key}: {value}\n" for key, value in {**fields, "Description": "SIMULATED"}.items())
    for path, text in {"DEBIAN/control": control, **files}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
        (tree / path).chmod(0o755)
    deb = directory / f"{name}_{version}_all.deb"
    run(["dpkg-deb", "--root-owner-group", "--build", tree, deb])
    return deb
