# SPDX-License-Identifier: Apache-2.0
"""The lab's bundle: the directory of files that the playbooks install from (docs/offline.md)."""

import hashlib
import re
from pathlib import Path

import yaml

from images.arm64 import build as plugin
from tests.lab import k3s, workloads
from tests.lab.workloads import DEFAULT_ARCH
from tools.cache import place
from tools.process import ToolError, run, step

CHECKSUMS = "SHA256SUMS"


def write(
    directory: Path,
    version_suffix: str = "",
    arch: str = DEFAULT_ARCH,
    minors: int = 0,
    which: str = "",
) -> None:
    """Write the bundle for boards of an architecture, or bring the one that is there up to date.

    For an upgrade the same K3s calls itself by a later, SIMULATED version: with the suffix, or with `minors`
    added to its minor one. `which` is that of k3s.k3s().
    """
    simulated = version_suffix or minors
    executable = k3s.compiled(arch, version_suffix, minors) if simulated else k3s.k3s(arch, which)
    directory.mkdir(parents=True, exist_ok=True)
    with step("writing the bundle"):
        place(executable, directory / f"k3s-{arch}")
        place(workloads.pause_archive(arch), directory / f"k3s-airgap-images-{arch}.tar.gz")
        plugin.build(arch, directory / f"tegra-device-plugin-{arch}.tar.gz")
        described = {
            "version": 1,
            "k3s_version": k3s_version(run([executable, "--version"]).stdout),
            "plugin_image": plugin.reference(),
            "pause_image": workloads.PAUSE_IMAGE,
            "simulated": True,
        }
        (directory / "bundle.yml").write_text(yaml.safe_dump(described, sort_keys=False))
        (directory / CHECKSUMS).write_text(checksums(directory))


def k3s_version(said: str) -> str:
    """Return the version from what `k3s --version` says, e.g. `v1.33.5+k3s1`."""
    found = re.match(r"k3s version (\S+)", said)
    if found is None:
        raise ToolError(f"`k3s --version` says {said.strip()!r}, which does not begin with `k3s version`")
    return found[1]


def write_release(bundle: Path, page: Path, version: str = "", arch: str = DEFAULT_ARCH) -> str:
    """Write a bundle's K3s as a release of K3s' page, under another version if given; return the version."""
    version = version or str(yaml.safe_load((bundle / "bundle.yml").read_text())["k3s_version"])
    release = page / version
    release.mkdir(parents=True)
    images = f"k3s-airgap-images-{arch}.tar.gz"
    for name, released in {f"k3s-{arch}": "k3s", images: images}.items():
        (release / released).symlink_to(bundle / name)
    (release / f"sha256sum-{arch}.txt").write_text(checksums(release))
    return version


def checksums(directory: Path) -> str:
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return "".join(f"{sha256(files[name])}  {name}\n" for name in sorted(files) if name != CHECKSUMS)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
