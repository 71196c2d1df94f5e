# SPDX-License-Identifier: Apache-2.0
"""A site: its registry, K3s' release page, its proxy, new images for its bundle, traffic to its boards."""

import base64
import functools
import http.client
import json
import selectors
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from images.arm64 import pack
from tests.lab import board, bundle, inventory, workloads
from tests.lab.board import Board
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tests.unit.roles.playing import answer
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


def bridge(lab: str) -> str:
    """The interface of this machine in the network of a lab."""
    return f"br-{docker('network', 'inspect', '--format={{.Id}}', board.network_name(lab))[:12]}"


def crossed(lab: str) -> int:
    """Bytes so far between this machine and the boards of a lab, both ways.

    What boards send to each other crosses the bridge from port to port, and is no traffic of its interface.
    """
    statistics = Path(f"/sys/class/net/{bridge(lab)}/statistics")
    return sum(int((statistics / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


def later_bundle(lab: str, name: str = "newer") -> Path:
    """Write a bundle with a later, SIMULATED K3s beside that of a lab, once; return where it is."""
    directory = inventory.bundle_path(lab).with_name(name)
    if not directory.exists():
        bundle.write(directory, version_suffix="2")
    return directory


def reindex(directory: Path) -> None:
    (directory / bundle.CHECKSUMS).write_text(bundle.checksums(directory))


def bring_registry(lab: str, jetpack: int) -> None:
    directory = inventory.bundle_path(lab)
    with tarfile.open(directory / f"debs-jetpack{jetpack}-{ARCH}.tar", "w") as tar:
        for deb in sorted(debian.package_files(*REGISTRY_PACKAGES).glob("*.deb")):
            tar.add(deb, deb.name)
    reindex(directory)


@contextmanager
def shaped(lab: str, megabits: float) -> Iterator[None]:
    """Limit what goes from this machine to the boards of a lab, and not what boards send each other."""
    device = bridge(lab)
    shape = f"tbf rate {megabits}mbit burst 64kb latency 400ms".split()
    run(["tc", "qdisc", "replace", "dev", device, "root", *shape])
    try:
        yield
    finally:
        run(["tc", "qdisc", "del", "dev", device, "root"])


def bring_images(lab: str, *archives: Path, architectures: Sequence[str] = (ARCH,)) -> list[dict[str, Any]]:
    """Put images of a user into the bundle of a lab, as bundle.yml does; return its index of them."""
    directory = inventory.bundle_path(lab)
    given = {"path": str(directory), "images": [*map(str, archives)], "architectures": [*architectures]}
    said = answer("bundle_images", given)
    assert not said.get("failed"), said
    reindex(directory)
    found: list[dict[str, Any]] = said["images"]
    return found


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


def basic(login: str) -> str:
    """A header of HTTP's basic authentication."""
    return f"Basic {base64.b64encode(login.encode()).decode()}"


@dataclass
class Proxy:
    """An HTTP proxy that asks for a password. It alone knows the names of `hosts`, and where they are."""

    url: str
    login: str
    """`USER:PASSWORD`."""
    hosts: Mapping[str, int]
    """By name the port on this machine."""
    logins: Mapping[str, str]
    """By name the user and password that a host asks for, which has no authentication of its own."""
    asked: set[str]
    """`GET http://a.example:80/b` and `CONNECT a.example:443`."""


class ProxyHandler(BaseHTTPRequestHandler):
    proxy: Proxy

    def refused(self) -> bool:
        if self.headers.get("Proxy-Authorization") == basic(self.proxy.login):
            self.proxy.asked.add(f"{self.command} {self.path}")
            return False
        self.answer(407, "Proxy-Authenticate")
        return True

    def answer(self, status: int, name: str) -> None:
        self.send_response(status)
        self.send_header(name, 'Basic realm="site"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_CONNECT(self) -> None:
        if self.refused():
            return
        port = self.proxy.hosts.get(self.path.rpartition(":")[0])
        if port is None:
            self.send_error(502)
            return
        with socket.create_connection(("127.0.0.1", port), 10) as there:
            self.send_response(200)
            self.end_headers()
            relay(self.connection, there)
        self.close_connection = True

    def do_GET(self) -> None:
        if self.refused():
            return
        url = urlsplit(self.path)
        port = self.proxy.hosts.get(url.hostname or "")
        login = self.proxy.logins.get(url.hostname or "")
        if port is None:
            self.send_error(502)
        elif login and self.headers.get("Authorization") != basic(login):
            self.answer(401, "WWW-Authenticate")
        else:
            self.forward(port, url.path + (f"?{url.query}" if url.query else ""))

    def do_HEAD(self) -> None:
        self.do_GET()

    def forward(self, port: int, path: str) -> None:
        there = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        kept = {
            name: self.headers[name] for name in ("Accept", "Range", "User-Agent") if name in self.headers
        }
        there.request(self.command, path, headers={**kept, "Host": self.headers["Host"]})
        found = there.getresponse()
        body = found.read()
        self.send_response(found.status)
        for name, value in found.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = found.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        there.close()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def relay(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until one side ends."""
    with selectors.DefaultSelector() as ready:
        ready.register(one, selectors.EVENT_READ, other)
        ready.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in ready.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 16)
                if not data:
                    return
                key.data.sendall(data)


@contextmanager
def proxy(
    host: str, login: str, hosts: Mapping[str, int], logins: Mapping[str, str] | None = None
) -> Iterator[Proxy]:
    """A proxy of this machine, which boards know as `host`; `login` is `USER:PASSWORD`."""

    class Handler(ProxyHandler):
        pass

    with ThreadingHTTPServer(("", 0), Handler) as server:
        made = Proxy(f"http://{login}@{host}:{server.server_port}", login, hosts, logins or {}, set())
        Handler.proxy = made
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def gateway(one: Board) -> str:
    """The address of this machine in the network of a lab's board."""
    return f"{one.address.rpartition('.')[0]}.1"


@contextmanager
def internet(lab: str, server: Board, directory: Path) -> Iterator[tuple[Registry, dict[str, Any]]]:
    """A registry that has K3s' images, and the variables with which boards of a lab find it and K3s."""
    host = gateway(server)
    version = bundle.write_release(inventory.bundle_path(lab), directory / "releases")
    with registry(directory) as found, release_page(directory / "releases") as page:
        found.push(workloads.pause_archive(), workloads.PAUSE_IMAGE, workloads.PAUSE_IMAGE)
        mirror = f"{host}:{found.port}"
        yield (
            found,
            {
                "k3s_version": version,
                "k3s_release_url": f"http://{host}:{page}",
                "k3s_sha256": {ARCH: bundle.sha256(inventory.bundle_path(lab) / f"k3s-{ARCH}")},
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
