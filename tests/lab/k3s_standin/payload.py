# SPDX-License-Identifier: Apache-2.0
"""The programs inside the executable, and their unpacking into `<data-dir>/data/<hash>/bin` as K3s does."""

import fcntl
import io
import json
import logging
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .errors import StandinError
from .packed import DIGEST, ORIGIN

log = logging.getLogger(__name__)

# This module's file is <archive>/k3s_standin/payload.py.
ARCHIVE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Build:
    """What the executable was built from: versions, and the names hyperkube answers to."""

    kubernetes: str
    datastore: str
    programs: tuple[str, ...]
    files: tuple[str, ...]


def build() -> Build:
    """Return the build facts that were packed in. Raises StandinError when run from the sources."""
    if not ARCHIVE.is_file():
        raise StandinError("this is not the packed executable; make one with: python -m tests.lab.kubernetes")
    with zipfile.ZipFile(ARCHIVE) as archive:
        content = archive.read("payload/build.json")
    facts = json.loads(content)
    return Build(
        kubernetes=facts["kubernetes"],
        datastore=facts["datastore"],
        programs=tuple(facts["programs"]),
        files=tuple(facts["files"]),
    )


def version_text() -> str:
    """Return what `k3s --version` prints: K3s' form, and that this is none."""
    facts = build()
    with zipfile.ZipFile(ARCHIVE) as archive:
        version = archive.read("payload/version").decode()
    return (
        f"k3s version {version} (stand-in for tests, not K3s: Kubernetes "
        f"{facts.kubernetes} and {facts.datastore} from {ORIGIN})"
    )


def unpacked(data_dir: Path) -> Path:
    """Return the directory with the programs, unpacked when absent: whole or not there at all."""
    facts = build()
    data = data_dir / "data"
    target = data / DIGEST
    if not target.is_dir():
        data.mkdir(parents=True, exist_ok=True)
        with (data / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in data.glob("*.partial"):
                shutil.rmtree(leftover)
            if not target.is_dir():
                log.info("Preparing data dir %s", target)
                unpack(data / f"{DIGEST}.partial" / "bin", facts)
                (data / f"{DIGEST}.partial").rename(target)
    return target / "bin"


def unpack(directory: Path, facts: Build) -> None:
    """Write the programs and the links to them, through to the disk."""
    directory.mkdir(parents=True)
    with zipfile.ZipFile(ARCHIVE) as archive:
        for name in facts.files:
            with archive.open(f"payload/{name}") as source, (directory / name).open("wb") as sink:
                shutil.copyfileobj(source, sink, io.DEFAULT_BUFFER_SIZE * 64)
                os.fchmod(sink.fileno(), 0o755)
                sink.flush()
                os.fsync(sink.fileno())
    for program in facts.programs:
        (directory / program).symlink_to("hyperkube")
