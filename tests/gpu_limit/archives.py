# SPDX-License-Identifier: Apache-2.0
"""Debian and Ubuntu packages that the tests unpack, never install: old and new glibcs, NVIDIA's real driver.

Each is pinned by its checksum and kept in the cache.
"""

import hashlib
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.debian import ensure_packages
from tests.lab.paths import cached
from tests.lab.process import run, step

MIRRORS = {"ubuntu": "http://archive.ubuntu.com/ubuntu/pool/", "debian": "http://deb.debian.org/debian/pool/"}
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Package:
    """A .deb: its distribution, its place below `pool/`, its SHA-256."""

    distribution: str
    path: str
    sha256: str

    def unpacked(self) -> Path:
        """Return a directory with the package's files; skips the test where it cannot be had."""
        try:
            return cached(f"gpu-limit/packages/{Path(self.path).stem}-{self.sha256[:12]}", self._unpack)
        except urllib.error.URLError as error:
            pytest.skip(f"{self.path} cannot be had: {error}")

    def _unpack(self, out: Path) -> None:
        ensure_packages("dpkg-dev")
        archive = out.with_name("package.deb")
        with step(f"fetching {Path(self.path).name}"):
            url = MIRRORS[self.distribution] + self.path
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - http, pinned
                archive.write_bytes(answer.read())
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert found == self.sha256, f"{url} has SHA-256 {found}"
        run(["dpkg-deb", "--extract", archive, out])
