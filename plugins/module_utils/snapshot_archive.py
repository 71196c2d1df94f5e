# SPDX-License-Identifier: Apache-2.0
"""The archive of a snapshot, format 1: a tar.gz that begins with manifest.json and has regular files only.

Links and device nodes are entries of the manifest. An archive comes from a board or from a person that nobody
knows. So `read` refuses everything that `write` does not make, before a file is written.

Runs on the board, therefore Python 3.6 compatible. The device plugin has this file, too, by a link.
"""

import io
import json
import os
import re
import tarfile
import zlib
from typing import Any, Dict, List, Mapping, NamedTuple

MANIFEST = "manifest.json"
FORMAT = "jetson-k3s-snapshot"
VERSION = 1

MOST_COMPRESSED = 16 * 1024 * 1024  # bytes of the file
MOST_UNPACKED = 48 * 1024 * 1024
MOST_MEMBERS = 12000
MOST_ENTRIES = 20000
LONGEST_PATH = 512

TYPES = ("absent", "block", "char", "dir", "file", "link", "other")
NAME = re.compile(r"tree/.+|programs/[a-z0-9-]+\.txt|packages\.txt|[a-z_]+\.json", re.DOTALL)

Data = Dict[str, Any]
Snapshot = NamedTuple("Snapshot", [("manifest", Data), ("contents", Dict[str, bytes])])


class ArchiveError(Exception):
    """The file is no snapshot, or is not safe to read."""


def write(manifest: Mapping[str, Any], contents: Mapping[str, bytes]) -> bytes:
    """The bytes of an archive. `contents` are its files by their names in it."""
    full = dict(manifest, format=FORMAT, version=VERSION)
    full["files"] = {name: len(content) for name, content in contents.items()}
    text = json.dumps(full, indent=1, sort_keys=True).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        for name, content in [(MANIFEST, text), *sorted(contents.items())]:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), 0o600, int(manifest["created"])
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def load(path: str) -> Snapshot:
    """Read an archive's file. ArchiveError, OSError."""
    with open(path, "rb") as stream:
        return read(stream.read(MOST_COMPRESSED + 1))


def read(packed: bytes) -> Snapshot:
    """The manifest and the files of an archive. ArchiveError says why it is refused."""
    if len(packed) > MOST_COMPRESSED:
        raise ArchiveError("it is larger than {} MiB".format(MOST_COMPRESSED >> 20))
    contents: Dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_unpacked(packed)), mode="r:") as archive:
            for member in archive:
                _check_member(member, contents)
                source = archive.extractfile(member)
                contents[member.name] = source.read() if source is not None else b""
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise ArchiveError("it is damaged ({})".format(error)) from error
    if next(iter(contents), None) != MANIFEST:
        raise ArchiveError("it does not begin with {}: it is no snapshot".format(MANIFEST))
    manifest = _checked(contents.pop(MANIFEST), contents)
    return Snapshot(manifest, contents)


def _unpacked(packed: bytes) -> bytes:
    """The tar file. It is never larger than the limit, also if its gzip header lies."""
    if not packed.startswith(b"\x1f\x8b"):
        raise ArchiveError("it is no gzip file")
    unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        content = unzip.decompress(packed, MOST_UNPACKED + 1)
    except zlib.error as error:
        raise ArchiveError("it is damaged ({})".format(error)) from error
    if len(content) > MOST_UNPACKED:
        raise ArchiveError("it is larger than {} MiB when it is unpacked".format(MOST_UNPACKED >> 20))
    if not unzip.eof:
        raise ArchiveError("it is cut off")
    return content


def _check_member(member: tarfile.TarInfo, before: Mapping[str, bytes]) -> None:
    name = member.name
    sparse = getattr(member, "sparse", None) is not None  # of a few bytes, a file of any size
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or sparse:
        raise ArchiveError("{!r} in it is no regular file".format(name))
    if name != MANIFEST and (NAME.fullmatch(name) is None or not _is_plain(name)):
        raise ArchiveError("it has {!r}, a name that no snapshot has".format(name))
    if not 0 <= member.size <= MOST_UNPACKED:
        raise ArchiveError("{!r} in it is larger than {} MiB".format(name, MOST_UNPACKED >> 20))
    if name in before:
        raise ArchiveError("it has {!r} twice".format(name))
    if len(before) >= MOST_MEMBERS:
        raise ArchiveError("it has more than {} files".format(MOST_MEMBERS))


def _is_plain(path: str) -> bool:
    """Is this a relative path without `.`, `..`, empty parts and control characters?"""
    parts = path.split("/")
    return (
        len(path) <= LONGEST_PATH
        and not {"", ".", ".."} & set(parts)
        and re.search(r"[\0-\x1f]", path) is None
    )


def _checked(text: bytes, contents: Mapping[str, bytes]) -> Data:
    """The manifest, if it fits the files. ArchiveError."""
    try:
        manifest = json.loads(text.decode("utf-8"))
        if manifest["format"] != FORMAT:
            raise ArchiveError("its format is {!r} and not {}".format(manifest["format"], FORMAT))
        if manifest["version"] != VERSION:
            raise ArchiveError(
                "its format has version {!r}, and version {} is known: use the release that made it".format(
                    manifest["version"], VERSION
                )
            )
        if manifest["files"] != {name: len(content) for name, content in contents.items()}:
            raise ArchiveError("its files are not those of its manifest")
        known: Data = {
            "created": int(manifest["created"]),
            "data": {str(name): _plain(entry) for name, entry in manifest["data"].items()},
            "packages": _plain(manifest["packages"]),
            "programs": [
                dict(_plain(entry), argv=[str(word) for word in entry["argv"]])
                for entry in manifest["programs"]
            ],
            "redacted": _plain(manifest["redacted"]),
            "root": str(manifest["root"]),
            "tool": _plain(manifest["tool"]),
            "tree": [_plain(entry) for entry in manifest["tree"]],
        }
        _check_tree(known["tree"], contents)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArchiveError(
            "its manifest cannot be read ({}: {})".format(type(error).__name__, error)
        ) from error
    return known


def _plain(entry: Data) -> Data:
    """The values that are no lists and no objects."""
    return {str(key): value for key, value in entry.items() if isinstance(value, (str, int))}


def _check_tree(tree: List[Data], contents: Mapping[str, bytes]) -> None:
    """ArchiveError unless the entries can be written below one directory without leaving it."""
    if len(tree) > MOST_ENTRIES:
        raise ArchiveError("its manifest has more than {} entries".format(MOST_ENTRIES))
    kinds: Dict[str, str] = {}
    for entry in tree:
        path, kind = entry["path"], entry["type"]
        if not path.startswith("/") or not _is_plain(path[1:]):
            raise ArchiveError("its manifest has the path {!r}".format(path))
        if kind not in TYPES:
            raise ArchiveError("its manifest has {!r} of the type {!r}".format(path, kind))
        if path in kinds:
            raise ArchiveError("its manifest has {!r} twice".format(path))
        if kind == "link":
            target(path, entry["target"])
        kinds[path] = kind
    for path in kinds:
        for above in _parents(path):
            if kinds.get(above, "dir") != "dir":
                raise ArchiveError("{!r} in it is below {!r}, which is no directory".format(path, above))
    for name in contents:
        if name.startswith("tree/") and kinds.get(name[len("tree") :]) != "file":
            raise ArchiveError("{!r} in it is no file of its manifest".format(name))


def _parents(path: str) -> List[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: place + 1]) for place in range(len(parts))]


def target(path: str, text: str) -> str:
    """Where a link leads, from the root. ArchiveError for one that leads above the root."""
    if not isinstance(text, str) or "\0" in text or not 0 < len(text) <= LONGEST_PATH:
        raise ArchiveError("the link {!r} in it has no valid target".format(path))
    parts = [] if text.startswith("/") else path.split("/")[1:-1]
    for part in text.split("/"):
        if part == "..":
            if not parts:
                raise ArchiveError("the link {!r} in it leads out of the board, to {!r}".format(path, text))
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def unpack(snapshot: Snapshot, directory: str) -> None:
    """Make the board's tree in an empty directory: device nodes are empty files, and links stay below it.

    A file that could not be read on the board cannot be read here: it is a directory.
    """
    links = []
    for entry in snapshot.manifest["tree"]:
        path = entry["path"]
        place = directory + path
        if entry["type"] == "absent":
            continue
        if entry["type"] == "link":
            links.append(
                (place, os.path.relpath(directory + target(path, entry["target"]), os.path.dirname(place)))
            )
            continue
        unread = entry["type"] == "file" and "tree" + path not in snapshot.contents and "error" in entry
        if entry["type"] == "dir" or unread:
            os.makedirs(place, 0o700, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        with open(place, "xb") as stream:
            stream.write(snapshot.contents.get("tree" + path, b""))
    for place, to in links:
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        os.symlink(to, place)


def with_data(snapshot: Snapshot, data: Mapping[str, Any]) -> bytes:
    """An archive with more values. One that is a string says why there is none."""
    contents = dict(snapshot.contents)
    manifest = dict(snapshot.manifest, data=dict(snapshot.manifest["data"]))
    for name, value in data.items():
        is_reason = isinstance(value, str)
        manifest["data"][name] = {"error": value} if is_reason else {}
        contents.pop(name + ".json", None)
        if not is_reason:
            contents[name + ".json"] = json.dumps(value, indent=1, sort_keys=True).encode()
    return write(manifest, contents)


def data_of(snapshot: Snapshot, name: str) -> Any:
    """A value that the snapshot has. ArchiveError says why it has none."""
    content = snapshot.contents.get(name + ".json")
    if content is None:
        entry = snapshot.manifest["data"].get(name) or {}
        reason = entry.get("error") or "it was made by tegra-device-plugin capture"
        raise ArchiveError("it has no {}: {}".format(name, reason))
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArchiveError("its {} cannot be read ({})".format(name, error)) from error
