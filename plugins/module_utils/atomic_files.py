# SPDX-License-Identifier: Apache-2.0
"""Files that are complete at every moment, and markers that a restart is due.

Runs on the board, therefore Python 3.6 compatible.
"""

import contextlib
import os
import tempfile
from typing import IO, Callable, Iterator


def make_directory(path: str) -> None:
    """Make the directory that a file lies in."""
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)


def replace_file(
    path: str, text: str, mode: int = 0o644, rename: Callable[[str, str], None] = os.rename
) -> None:
    """Make or replace a file in one step. Raises OSError.

    With AnsibleModule.atomic_move as `rename` an old file's owner and mode stay.
    """
    with replacement(path, mode, rename) as stream:
        stream.write(text.encode("utf-8"))


@contextlib.contextmanager
def replacement(
    path: str, mode: int = 0o644, rename: Callable[[str, str], None] = os.rename
) -> Iterator[IO[bytes]]:
    """A binary stream. At the end of the block its content replaces the file in one step. Raises OSError.

    Then the file and its name are on the disk, so a power cut keeps them. After an exception in the block the
    old file stays.
    """
    make_directory(path)
    fresh = tempfile.NamedTemporaryFile(
        prefix=".{}.".format(os.path.basename(path)), dir=os.path.dirname(path), delete=False
    )
    try:
        with fresh as stream:
            os.fchmod(stream.fileno(), mode)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        rename(fresh.name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh.name)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def leave_marker(path: str) -> None:
    """Make the marker file, before the change that needs the restart; the role removes it after the restart.

    In /run, because a reboot restarts as well.
    """
    make_directory(path)
    with open(path, "a"):
        pass
