# SPDX-License-Identifier: Apache-2.0
"""Unpack the files of a job on the controller. A board made the archive, so no name in it is trusted.

An archive with a name that leads out of its directory, with a link that does, or with a special file is
refused before a file is written. Links inside it are left out. Each file is written with the rights of a
plain file.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

MOST_FILES = 10_000
LONGEST_PART, LONGEST_PATH = 255, 2048
BLOCK = 1 << 20
# Names that mean something else to Windows, where CI systems show artifacts: GitHub refuses these characters.
REFUSED = re.compile(r'[\\<>:"|?*\x00-\x1f\x7f-\x9f]')
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NO_UTF8 = re.compile("[\ud800-\udfff]")


class ResultsError(Exception):
    """The files are not taken; the text names the reason."""


class Unpacked(NamedTuple):
    """What was written."""

    files: list[str]
    bytes: int
    left_out: list[str]


def printable(name: str) -> str:
    """A name for a message: on one line, without control characters."""
    shown = CONTROL.sub("?", name).encode("utf-8", "replace").decode()
    return shown if len(shown) <= LONGEST_PART else f"{shown[:LONGEST_PART]}..."


def name_problem(name: str) -> str:
    """Why a name is not taken, '' if it is."""
    path = PurePosixPath(name)
    too_long = any(len(part.encode("utf-8", "replace")) > LONGEST_PART for part in path.parts)
    problems = (
        (not path.parts or "\0" in name, "an empty name"),
        (path.is_absolute(), "an absolute path"),
        (".." in path.parts, "a path with `..`"),
        (len(name) > LONGEST_PATH or too_long, "a name that is too long"),
        (NO_UTF8.search(name), "a name that is no UTF-8"),
        (REFUSED.search(name), 'a name with a control character or one of \\ < > : " | ? *'),
    )
    return next((words for found, words in problems if found), "")


def leads_out(name: str, target: str) -> bool:
    """Whether a symbolic link of this name leads out of the archive."""
    if PurePosixPath(target).is_absolute():
        return True
    depth = len(PurePosixPath(name).parent.parts)
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def problem(member: tarfile.TarInfo) -> str:
    """Why an archive with this member is refused, '' if it is not."""
    wrong = name_problem(member.name)
    if wrong:
        return wrong
    if member.issym() and leads_out(member.name, member.linkname):
        return f"a link to {printable(member.linkname)}, outside of the results"
    if member.islnk() and name_problem(member.linkname):
        return f"a link to {printable(member.linkname)}, outside of the results"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "a special file"
    return ""


def members(archive: tarfile.TarFile, limit: int) -> list[tarfile.TarInfo]:
    """The members of an archive that may be unpacked. ResultsError."""
    found: list[tarfile.TarInfo] = []
    total = 0
    kinds: dict[str, bool] = {}
    for member in archive:
        wrong = problem(member)
        if wrong:
            raise ResultsError(f"{printable(member.name)} is {wrong}")
        path = PurePosixPath(member.name)
        inside = next((one for one in path.parents if kinds.get(str(one), True) is False), None)
        if inside is not None or kinds.get(str(path)) is False or (str(path) in kinds and not member.isdir()):
            raise ResultsError(
                f"{printable(member.name)} is there twice, or below something that is no directory"
            )
        kinds[str(path)] = member.isdir()
        total += member.size if member.isreg() else 0
        if total > limit or len(found) >= MOST_FILES:
            raise ResultsError(f"the files are more than {limit} bytes, or more than {MOST_FILES}")
        found.append(member)
    return found


def unpack(archive: Path, directory: Path, limit: int) -> Unpacked:
    """Write the files of an archive into a new directory. ResultsError, OSError.

    `limit` is the most bytes. What was in the directory before is removed: it is of an earlier run.
    """
    try:
        with tarfile.open(archive, "r:") as opened:
            found = members(opened, limit)
            if directory.is_symlink() or directory.is_file():
                raise ResultsError(f"{directory} is there and is no directory: remove it")
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            files, left_out, total = [], [], 0
            for member in found:
                target = directory.joinpath(*PurePosixPath(member.name).parts)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif member.isreg():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    total += write(opened, member, target)
                    files.append(member.name)
                else:
                    left_out.append(member.name)
    except (tarfile.TarError, EOFError) as error:
        raise ResultsError(f"the archive of the files is damaged: {error}") from error
    return Unpacked(files, total, left_out)


def write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> int:
    """Write one file; return its size. ResultsError, OSError."""
    content = archive.extractfile(member)
    if content is None:
        raise ResultsError(f"{printable(member.name)} has no content")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o644), "wb") as file:
        shutil.copyfileobj(content, file, BLOCK)
        return file.tell()
