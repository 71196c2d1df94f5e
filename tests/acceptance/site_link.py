# SPDX-License-Identifier: Apache-2.0
"""The way from the controller to a lab's boards, and new files for its bundle that have to go along it."""

import json
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from images.arm64 import pack
from tests.lab import board, bundle, inventory, workloads
from tests.lab.workloads import DEFAULT_ARCH as ARCH
from tools import debian
from tools.engine import docker

# Debian's registry, and what a board of the lab may lack of what it depends on.
REGISTRY_PACKAGES = ("docker-registry", "lsb-base")


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
