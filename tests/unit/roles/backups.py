# SPDX-License-Identifier: Apache-2.0
"""Backups of a K3s server as tests need them: their files, their archive, and the archive encrypted."""

from __future__ import annotations

import io
import sqlite3
import subprocess
from pathlib import Path
from types import ModuleType

FACTS = {
    "server": "jetson-1",
    "k3s_version": "v1.33.5+k3s1",
    "datastore": "sqlite",
    "created": "2026-01-02T03:04:05Z",
    "ca": "c" * 64,
}
SECRET = "K10-a-secret-of-the-cluster"
KINE = "CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, value BLOB)"


def write_files(directory: Path) -> Path:
    """What is backed up."""
    for name, text in {
        "server/token": SECRET,
        "server/db/state.db": "data",
        "etc/config.yaml": "theirs",
        "node/password": "p",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def packed(archive: ModuleType, files: Path, **facts: str) -> bytes:
    stream = io.BytesIO()
    archive.write(stream, str(files), FACTS | facts)
    return stream.getvalue()


def database(path: Path) -> sqlite3.Connection:
    """K3s' database, in use."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(KINE)
    connection.execute("INSERT INTO kine (name, value) VALUES ('/registry/a', x'00ff')")
    return connection


def encrypted(content: bytes, key: Path) -> bytes:
    """A file for the owner's key, as anybody can make it."""
    argv = ["gpg", "--batch", "--quiet", "--trust-model=always", f"--recipient-file={key}", "--encrypt"]
    return subprocess.run(argv, input=content, capture_output=True, check=True).stdout
