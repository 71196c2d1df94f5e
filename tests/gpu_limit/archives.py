# SPDX-License-Identifier: Apache-2.0
"""Packages that the tests unpack, never install: old and new glibcs, NVIDIA's real driver and runtimes.

packages.yml pins each by its checksum; they are kept in the cache.
"""

import hashlib
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.cache import cached
from tools.debian import ensure_packages
from tools.process import run, step

PACKAGES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("packages.yml").read_text())
MIRRORS = {"ubuntu": "http://archive.ubuntu.com/", "debian": "http://deb.debian.org/"}
TIMEOUT_SECONDS = 60
# That NVIDIA's wheels for amd64 are made for.
PLATFORMS = ("manylinux2014_x86_64", "manylinux1_x86_64")


def known(kind: str) -> list[str]:
    return list(PACKAGES[kind])


def unpacked(kind: str, name: str) -> Path:
    """Return a directory with the package's files; skips the test where it cannot be had."""
    entry = PACKAGES[kind][name]
    what, sha256 = entry.get("path") or entry["wheel"], entry["sha256"]

    def build(out: Path) -> None:
        with step(f"fetching {Path(what).name}"):
            archive = (_package if "path" in entry else _wheel)(what, out.parent)
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert found == sha256, f"{what} has SHA-256 {found}"
        if "path" in entry:
            ensure_packages("dpkg")
            run(["dpkg-deb", "--extract", archive, out])
        else:
            zipfile.ZipFile(archive).extractall(out)
        archive.unlink()

    try:
        return cached(f"gpu-limit/packages/{Path(what).stem}-{sha256[:12]}", build)
    except urllib.error.URLError as error:
        pytest.skip(f"{what} cannot be had: {error}")


def _package(path: str, directory: Path) -> Path:
    archive = directory / Path(path).name
    url = MIRRORS[path.partition("/")[0]] + path
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - pinned
        archive.write_bytes(answer.read())
    return archive


def _wheel(requirement: str, directory: Path) -> Path:
    """Fetch one from pip's index."""
    target = directory / "wheel"
    wanted = [f"--platform={platform}" for platform in PLATFORMS]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *wanted]
    done = run([*pip, f"--dest={target}", requirement], check=False)
    if done.returncode:
        raise urllib.error.URLError(done.stderr.strip())
    (archive,) = target.iterdir()
    return archive
