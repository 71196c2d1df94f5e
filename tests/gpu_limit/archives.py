# SPDX-License-Identifier: Apache-2.0
"""Debian and Ubuntu packages that the tests unpack, never install: old and new glibcs, NVIDIA's real driver.

packages.yml pins each by its checksum; they are kept in the cache.
"""

import hashlib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.debian import ensure_packages
from tests.lab.paths import cached
from tests.lab.process import run, step

PACKAGES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("packages.yml").read_text())
MIRRORS = {"ubuntu": "http://archive.ubuntu.com/", "debian": "http://deb.debian.org/"}
TIMEOUT_SECONDS = 60


def known(kind: str) -> list[str]:
    """Return the names of all packages of a kind."""
    return list(PACKAGES[kind])


def unpacked(kind: str, name: str) -> Path:
    """Return a directory with the package's files; skips the test where it cannot be had."""
    path, sha256 = PACKAGES[kind][name].values()

    def build(out: Path) -> None:
        ensure_packages("dpkg")
        archive = out.with_name("package.deb")
        url = MIRRORS[path.partition("/")[0]] + path
        with (
            step(f"fetching {Path(path).name}"),
            urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer,  # noqa: S310 - pinned
        ):
            archive.write_bytes(answer.read())
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert found == sha256, f"{url} has SHA-256 {found}"
        run(["dpkg-deb", "--extract", archive, out])

    try:
        return cached(f"gpu-limit/packages/{Path(path).stem}-{sha256[:12]}", build)
    except urllib.error.URLError as error:
        pytest.skip(f"{path} cannot be had: {error}")
