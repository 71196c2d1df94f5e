# SPDX-License-Identifier: Apache-2.0
"""The auto-deploy directory.

Manifests are applied when they appear and when they change; a deleted file deletes nothing.
"""

import asyncio
import hashlib
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

# K3s looks every 15 s; tests have less patience.
POLL_SECONDS = 2.0
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
Apply = Callable[[Path], str | None]


def deployable(directory: Path) -> list[Path]:
    """Return the manifests below a directory, without those that have a `<name>.skip` file beside them."""
    return [
        path
        for path in sorted(directory.rglob("*"))
        if path.suffix in SUFFIXES and path.is_file() and not path.with_name(f"{path.name}.skip").exists()
    ]


class Deployer:
    """Applies each manifest once per content; one that fails is tried again at every look."""

    def __init__(self, directory: Path, apply: Apply) -> None:
        self._directory = directory
        self._apply = apply
        self._applied: dict[Path, str] = {}
        self._complaints: dict[Path, str] = {}

    def look(self) -> None:
        """Apply what is new or changed."""
        for path in deployable(self._directory):
            try:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            except FileNotFoundError:
                continue
            if self._applied.get(path) == digest:
                continue
            complaint = self._apply(path)
            if complaint is None:
                log.info("Applied manifest %s", path)
                self._applied[path] = digest
                self._complaints.pop(path, None)
            elif self._complaints.get(path) != complaint:
                log.error("Failed to apply manifest %s: %s", path, complaint)
                self._complaints[path] = complaint


def kubectl_apply(kubectl: Path, kubeconfig: Path, cache: Path) -> Apply:
    """Return a function that applies a manifest and returns None, or kubectl's complaint."""

    def apply(path: Path) -> str | None:
        command: list[str | Path] = [
            kubectl,
            "--kubeconfig",
            kubeconfig,
            "--cache-dir",
            cache,
            "apply",
            "--filename",
            path,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else done.stderr.strip()

    return apply


async def deploy(deployer: Deployer) -> None:
    """Look for manifests for ever."""
    while True:
        await asyncio.to_thread(deployer.look)
        await asyncio.sleep(POLL_SECONDS)
