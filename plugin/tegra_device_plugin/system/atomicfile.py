# SPDX-License-Identifier: Apache-2.0
"""Files that are complete at every moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def update_file(path: Path, content: str | bytes, staged_in: Path | None = None) -> None:
    """Make or replace a file as `replace_file` does, unless it has that content. Raises OSError."""
    data = content.encode() if isinstance(content, str) else content
    with suppress(OSError):
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    replace_file(path, data, staged_in=staged_in)


def replace_file(path: Path, content: str | bytes, mode: int = 0o644, staged_in: Path | None = None) -> None:
    """Make or replace a file in one step; its directory must be there. Raises OSError.

    On return the file and its name are on the disk, so a power cut keeps them.
    Until then the content lies beside it, in a hidden file that does not end as this one does: NFD's
    features.d and CDI's directories are read at any moment. `staged_in` is another directory for that, of the
    same file system, where even hidden files are read.
    """
    _stage(path, content, mode, staged_in, lambda staged: staged.replace(path))


def make_file(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Make a file as `replace_file` does, unless it is there, also if others make it now. Raises OSError."""

    def link(staged: Path) -> None:
        with suppress(FileExistsError):
            path.hardlink_to(staged)
        staged.unlink()

    _stage(path, content, mode, None, link)


def _stage(
    path: Path, content: str | bytes, mode: int, staged_in: Path | None, put: Callable[[Path], object]
) -> None:
    """Write the content to a hidden file, let `put` give it its name, and wait for the disk."""
    import tempfile  # noqa: PLC0415 - 11 modules, which a plugin that writes nothing does without

    # Before anything changes: a process out of descriptors fails here.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=staged_in or path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fchmod(handle, mode)
                os.fsync(handle)
            put(Path(name))
        except BaseException as error:
            Path(name).unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:  # a full disk, say
                error.filename = str(path)
            raise
        os.fsync(directory)
    finally:
        os.close(directory)
