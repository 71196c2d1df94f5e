# SPDX-License-Identifier: Apache-2.0
"""A directory for uploads that no other user of the board can prepare, read or change.

Runs on the board, therefore Python 3.6 compatible.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from typing import Dict, Iterator, Tuple

from ansible_collections.jetson_k3s.cluster.plugins.module_utils.file_locks import lock

PROJECT, UPLOADS = "jetson-k3s", "uploads"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BLOCK = 1 << 20


class UploadError(Exception):
    """A directory or file cannot be trusted; the text names it, its owner and the fix."""


def described(state: os.stat_result) -> str:
    """A file for an error message: its type, owner and mode."""
    kinds = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a directory"), (stat.S_ISREG, "a file"))
    kind = next((name for matches, name in kinds if matches(state.st_mode)), "a special file")
    return "{} of user id {} with mode {:04o}".format(kind, state.st_uid, stat.S_IMODE(state.st_mode))


def check(path: str, state: os.stat_result, private: bool) -> None:
    """UploadError unless the directory is root's, and others cannot replace its entries.

    A private directory gives others no access at all. In a sticky one others cannot replace root's entries.
    """
    mode = stat.S_IMODE(state.st_mode)
    if state.st_uid not in (0, os.geteuid()):
        raise UploadError(
            "{} is {}, but must belong to root. Nothing was uploaded. Find out who made it, then remove it: "
            "sudo rm -r {}".format(path, described(state), path)
        )
    if private and mode & 0o077:
        raise UploadError(
            "{} is {}, but must give other users no access (mode 0700). Nothing was uploaded. Check its "
            "content, then remove it: sudo rm -r {}".format(path, described(state), path)
        )
    if not private and mode & 0o022 and not mode & stat.S_ISVTX:
        raise UploadError(
            "{} is {}: other users can replace the files in it. Nothing was uploaded. Correct it: "
            "sudo chmod go-w {}".format(path, described(state), path)
        )


def opened(parent: int, name: str, path: str, private: bool = False) -> int:
    """Descriptor of a directory that is checked, in one that is open. Follows no link; FileNotFoundError."""
    try:
        found = os.open(name, DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        state = os.stat(name, dir_fd=parent, follow_symlinks=False)
        raise UploadError(
            "{} is {}, but must be a directory of root's. Nothing was uploaded. Find out who made it, then "
            "remove it: sudo rm {}   (for uploads on another disk use a bind mount)".format(
                path, described(state), path
            )
        ) from error
    try:
        check(path, os.fstat(found), private)
    except UploadError:
        os.close(found)
        raise
    return found


def made(parent: int, name: str, path: str, private: bool = False) -> int:
    """Like opened(); a directory that is missing is made."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return opened(parent, name, path, private)
    found = opened(parent, name, path)
    os.fchmod(found, 0o700 if private else 0o755)
    return found


@contextlib.contextmanager
def project(base: str, create: bool) -> Iterator[Tuple[int, str]]:
    """(descriptor, path) of the project's directory in `base`.

    Each directory on the way is checked, so nobody but root can replace a part of the path afterwards.
    FileNotFoundError when it is missing and is not to be made.
    """
    path, current = "/", os.open("/", DIRECTORY)
    try:
        check(path, os.fstat(current), private=False)
        for name in [*os.path.realpath(base).strip("/").split("/"), PROJECT]:
            path = os.path.join(path, name)
            below = (made if create and name == PROJECT else opened)(current, name, path)
            os.close(current)
            current = below
        yield current, path
    finally:
        os.close(current)


def is_there(parent: int, directory: int) -> bool:
    """Does the name still lead to the open directory? Another process may have removed it."""
    try:
        named = os.stat(UPLOADS, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(directory))


@contextlib.contextmanager
def locked(base: str, create: bool = False) -> Iterator[Tuple[int, str]]:
    """(descriptor of the project's directory, path of the uploads in it), locked for this process.

    Only root can open the directory of the uploads, so only root can lock it. FileNotFoundError when it is
    missing and is not to be made, TimeoutError when another process does not release it.
    """
    with project(base, create) as (parent, above):
        path, there = os.path.join(above, UPLOADS), False
        while not there:
            try:
                directory = (made if create else opened)(parent, UPLOADS, path, private=True)
            except FileNotFoundError:
                if create:  # it was there, and another process has removed it
                    continue
                raise
            try:
                lock(directory, path)
                there = is_there(parent, directory)
                if there:
                    yield parent, path
            finally:
                os.close(directory)


def make(base: str) -> str:
    """Make a new directory for one upload; return its path. UploadError, OSError."""
    with locked(base, create=True) as (_, path):
        return tempfile.mkdtemp(dir=path)


def remove(base: str, path: str) -> None:
    """Remove the directory of one upload. UploadError, OSError."""
    with contextlib.suppress(FileNotFoundError), locked(base) as (parent, place):
        name = os.path.basename(path)
        if name in ("", ".", "..") or path != os.path.join(place, name):
            raise UploadError("{} is no upload in {}. Nothing was removed.".format(path, place))
        shutil.rmtree(path)
        if not os.listdir(place):  # else another run has an upload
            os.rmdir(UPLOADS, dir_fd=parent)


def remove_all(base: str) -> None:
    """Remove all uploads, which interrupted runs have left. UploadError, OSError."""
    with contextlib.suppress(FileNotFoundError), locked(base) as (_, place):
        shutil.rmtree(place)


def sha256(path: str) -> str:
    """Hexadecimal SHA-256 of a regular file; follows no link. OSError."""
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def verify(directory: str, files: Dict[str, str]) -> None:
    """Compare uploaded files with their SHA-256, {name: digest}. UploadError names the file and both."""
    for name, expected in sorted(files.items()):
        found = sha256(os.path.join(directory, name))
        if found != expected:
            raise UploadError(
                "{} has the SHA-256 {} on the board, the bundle's SHA256SUMS says {}. The board did not use "
                "the file. Check the board's disk and memory, then run the playbook again.".format(
                    name, found, expected
                )
            )
