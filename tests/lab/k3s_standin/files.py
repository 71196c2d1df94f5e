# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent, whenever the stand-in is killed."""

import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes | str, mode: int = 0o600) -> None:
    """Write a file atomically and durably.

    Its directory is made (0700) when absent. Nothing happens when it is as wanted.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data and path.stat().st_mode & 0o7777 == mode:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, mode)
            file.flush()
            os.fsync(handle)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to `target`, atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
