# SPDX-License-Identifier: Apache-2.0
"""Make an image's root file system small. Runs in the Dockerfile's stage `tree`, with Python 3.11 alone.

Usage: python3.11 slim.py ROOT

Keeps Python, the application, the shared libraries that they need, and the records and licences of packages.
Compiles Python sources. ROOT may be of another architecture: none of its code runs. $TARGETPLATFORM says
what ROOT must be of.
"""

import compileall
import functools
import os
import re
import shutil
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

# It keeps its sources, so that a traceback on a board shows lines.
READABLE = "tegra_device_plugin"
APPLICATION = "opt/tegra-device-plugin"
# Debian's Python, and that of python:3.11-slim.
PYTHONS = ("usr/lib/python3.11", "usr/local/lib/python3.11")
# Besides the shared libraries that these need.
KEPT = f"""
{APPLICATION}/**/* usr/lib/tegra-gpu-limit/* etc/ld.so.conf.d/* lib64/* usr/lib64/*
usr/bin/python3.11 usr/lib/python3.11/**/* etc/python3.11/*
usr/local/bin/python3.11 usr/local/lib/python3.11/**/*
usr/share/doc/*/copyright var/lib/dpkg/status var/lib/dpkg/info/*.md5sums var/lib/dpkg/status.d/*
"""
# Of the wheels: programs with the build machine's paths, pip's notes with a temporary path or its hash,
# and certificates: that of the API server comes with the service account.
UNUSED_WHEELS = "bin share *.dist-info/RECORD *.dist-info/direct_url.json grpc/_cython/_credentials"
# Of Python: package management, what people and tests use, and bindings of libraries that are not kept.
UNUSED_LIBRARY = """
config-3.11* ensurepip lib2to3 site-packages venv
doctest.py idlelib pydoc* test tkinter turtle* unittest
curses sqlite3 xml*
lib-dynload/_*dbm* lib-dynload/_*test* lib-dynload/_bz2* lib-dynload/_codecs_* lib-dynload/_crypt*
lib-dynload/_curses* lib-dynload/_hashlib* lib-dynload/_lzma* lib-dynload/_sqlite3* lib-dynload/_tkinter*
lib-dynload/nis* lib-dynload/ossaudiodev* lib-dynload/readline* lib-dynload/xxlimited*
"""
LIBRARY_DIRECTORIES = ("lib", "usr/lib", "usr/local/lib")
# No ELF file here needs them: glibc opens the first by its name, to end a thread; the second is for the
# containers that ask for GPU memory.
OPENED_BY_NAME = ("libgcc_s.so.1", "libtegra-gpu-limit.so")

# Of the ELF specification and the generic ABI: machines, program header types and dynamic section tags.
_MACHINES = {"linux/amd64": 62, "linux/arm64": 183}
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB = 1, 5


def main(root: Path) -> None:
    """Run every step. The order matters: later steps see only what earlier ones have left."""
    keep_licences(root)
    keep_needed(root)
    unused = {APPLICATION: UNUSED_WHEELS, **dict.fromkeys(PYTHONS, UNUSED_LIBRARY)}
    for directory, patterns in unused.items():
        if (root / directory).is_dir():
            remove([path for pattern in patterns.split() for path in (root / directory).glob(pattern)])
            compile_sources(root, root / directory)
    check_architecture(root, os.environ["TARGETPLATFORM"])
    drop_unneeded_libraries(root)
    keep_records(root / "var/lib/dpkg")
    drop_leftovers(root)


def keep_needed(root: Path) -> None:
    """Remove each file that KEPT does not match, and that is no shared library."""
    kept = {path for pattern in KEPT.split() for path in root.glob(pattern)}
    for path in files(root):
        # Such as /lib, which may be a link to usr/lib.
        is_top = path.parent == root
        if not is_top and path not in kept and not _is_plain_library(root, path):
            path.unlink()


def remove(paths: Iterable[Path]) -> None:
    """Remove files, and directories with their content."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def compile_sources(root: Path, directory: Path) -> None:
    """Replace sources by bytecode, or add it for the package that keeps them.

    Bytecode is "unchecked", so valid with any file times: a read-only root cannot be renewed anyway.
    """
    for cache in list(directory.rglob("__pycache__")):
        shutil.rmtree(cache)
    compiled = functools.partial(
        compileall.compile_dir,
        quiet=1,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
    readable = re.compile(rf"/{READABLE}/")
    package = directory / READABLE
    # Without docstrings, which take 2 MB of a process.
    bytecode = compiled(directory, legacy=True, rx=readable, optimize=2)
    if not bytecode or (package.is_dir() and not compiled(package)):
        sys.exit(f"slim.py: there are sources below {directory} that do not compile")
    for source in list(directory.rglob("*.py")):
        if not readable.search(str(source)):
            source.unlink()


def check_architecture(root: Path, platform: str) -> None:
    """End with a message if a compiled file is not for `platform`: the base or a wheel is the wrong one."""
    for path in filter(_is_elf, files(root)):
        (machine,) = struct.unpack_from("<H", path.read_bytes(), 0x12)
        if machine != _MACHINES[platform]:
            sys.exit(f"slim.py: {path.relative_to(root)} is not for {platform} (ELF machine {machine})")


def drop_unneeded_libraries(root: Path) -> None:
    """Remove the shared libraries that no program, no extension module and no kept library needs."""
    libraries: dict[str, list[Path]] = {}
    roots: list[Path] = []
    for path in files(root):
        if _is_elf(path):
            if _is_plain_library(root, path):
                libraries.setdefault(path.name, []).append(path)
            else:
                roots.append(path)
        elif path.is_symlink() and ".so" in path.name and _is_plain_library(root, path):
            libraries.setdefault(path.name, []).append(path)
    kept: set[Path] = set()
    awaited = [path for name in OPENED_BY_NAME for path in libraries.get(name, [])] + roots
    while awaited:
        path = awaited.pop()
        if path in kept:
            continue
        kept.add(path)
        if path.is_symlink():
            awaited.append(path.parent / path.readlink())
        else:
            awaited += [library for name in needed(path) for library in libraries.get(name, [])]
    for path in {path for paths in libraries.values() for path in paths} - kept:
        path.unlink()


def keep_licences(root: Path) -> None:
    """Give each Debian package its own copy of the licences that it shares with another, which may go."""
    for directory in (root / "usr/share/doc").glob("*"):
        if directory.is_symlink() and (directory / "copyright").is_file():
            text = (directory / "copyright").read_bytes()
            directory.unlink()
            directory.mkdir()
            (directory / "copyright").write_bytes(text)


def keep_records(database: Path) -> None:
    """Turn dpkg's database into a record per package, as images without dpkg have it and scanners read it."""
    records, status = database / "status.d", database / "status"
    records.mkdir(parents=True, exist_ok=True)
    for stanza in filter(None, status.read_text().strip().split("\n\n") if status.is_file() else []):
        name = stanza.partition("Package: ")[2].split()[0]
        (records / name).write_text(f"{stanza}\n")
        sums = [*database.glob(f"info/{name}.md5sums"), *database.glob(f"info/{name}:*.md5sums")]
        (records / f"{name}.md5sums").write_text("".join(path.read_text() for path in sums))
    for path in database.iterdir():
        if path.is_dir() and path != records:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()


def drop_leftovers(root: Path) -> None:
    """Remove links to what is gone, empty directories, and records of packages of which nothing is left."""
    for path in list(files(root)):
        if path.is_symlink() and not _inside(root, path).exists():
            path.unlink()
    for directory, _, _ in os.walk(root, topdown=False):
        if not os.listdir(directory):  # noqa: PTH208 - emptiness, cheaply
            Path(directory).rmdir()
    records = root / "var/lib/dpkg/status.d"
    for sums in list(records.glob("*.md5sums")):
        installed = [line.split(maxsplit=1)[1] for line in sums.read_text().splitlines()]
        if not any(_remains(root, name) for name in installed):
            package = sums.with_suffix("")
            sums.unlink()
            package.unlink()
            shutil.rmtree(root / "usr/share/doc" / package.name, ignore_errors=True)


def files(root: Path) -> Iterator[Path]:
    """Yield every file and link below a directory, in order."""
    for directory, directories, names in os.walk(root):
        directories.sort()
        links = [name for name in directories if Path(directory, name).is_symlink()]
        yield from (Path(directory, name) for name in sorted([*names, *links]))


def needed(path: Path) -> list[str]:
    """Return what an ELF file asks the dynamic linker for: its libraries' names and its interpreter's."""
    data = path.read_bytes()
    if data[4:6] != b"\x02\x01":
        sys.exit(f"slim.py: {path} is not a 64-bit little-endian ELF file, which amd64's and arm64's are")
    (table,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    headers = [struct.unpack_from("<IIQQQQ", data, table + index * size) for index in range(count)]
    loaded = [header[2:] for header in headers if header[0] == _PT_LOAD]
    names = []
    for kind, _, offset, _, _, length in headers:
        if kind == _PT_INTERP:
            names.append(Path(_text(data, offset)).name)
        elif kind == _PT_DYNAMIC:
            entries = list(struct.iter_unpack("<QQ", data[offset : offset + length]))
            address = next(value for tag, value in entries if tag == _DT_STRTAB)
            strings = next(
                at + address - start for at, start, _, size in loaded if start <= address < start + size
            )
            names += [_text(data, strings + value) for tag, value in entries if tag == _DT_NEEDED]
    return names


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _is_plain_library(root: Path, path: Path) -> bool:
    """Whether the dynamic linker finds it by its name: it is in a library directory or its multiarch one."""
    place = path.parent.relative_to(root)
    place = place.parent if place.name.endswith("-linux-gnu") else place
    return ".so" in path.name and str(place) in LIBRARY_DIRECTORIES


def _inside(root: Path, link: Path) -> Path:
    """Return what a link points to when `root` is the root."""
    target = link.readlink()
    return root / target.relative_to("/") if target.is_absolute() else link.parent / target


def _remains(root: Path, name: str) -> bool:
    """Whether a packaged file is still there, as itself or as bytecode; documentation does not count."""
    there = (root / name).exists() or (root / f"{name}c").exists()
    return there and not name.startswith("usr/share/doc/")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
