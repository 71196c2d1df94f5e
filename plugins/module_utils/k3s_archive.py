# SPDX-License-Identifier: Apache-2.0
"""A backup of a K3s server as one file: a tar with a manifest that names every file and its hash.

Runs on the board and on the controller, therefore Python 3.6 compatible.
"""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import zlib
from typing import IO, Any, Dict, Optional

FORMAT = "jetson-k3s-backup/1"
MANIFEST = "manifest.json"
# Written by the role k3s from the inventory, so no backup has it.
OURS = "50-jetson-k3s.yaml"
SNAPSHOT = "server/db/snapshot"
DATA = {"etcd": SNAPSHOT, "sqlite": "server/db/state.db"}
# All files that a backup can have, below /var/lib/rancher/k3s/server, /etc/rancher/k3s and /etc/rancher/node.
NAME = re.compile(
    r"server/(?:token|agent-token|db/snapshot|db/state[.]db|(?:tls|cred|manifests)(?:/[^/]+)+)"
    r"|etc/(?:config[.]yaml|registries[.]yaml|config[.]yaml[.]d/(?!{})[^/]+[.]ya?ml)"
    r"|node/password".format(re.escape(OURS))
)
FACTS = {
    "created": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    "server": re.compile(r"[a-z0-9._-]{1,253}"),
    "k3s_version": re.compile(r"v\d+[.]\d+[.]\d+[+.a-z0-9-]*"),
    "datastore": re.compile("|".join(DATA)),
    "ca": re.compile(r"[0-9a-f]{64}"),
}
MANIFEST_BYTES = 16 << 20
CHUNK = 1 << 20
PRIVATE = 0o600


Manifest = Dict[str, Any]


class ArchiveError(Exception):
    """The backup is not complete; the text says why."""


def digest(path: str) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as stream:
        return _copy(stream, None)


def write(stream: IO[bytes], directory: str, manifest: Manifest) -> None:
    """Write the manifest with hashes and sizes, then all files below the directory."""
    names = sorted(
        os.path.relpath(os.path.join(where, name), directory)
        for where, _, files in os.walk(directory)
        for name in files
    )
    entries = {
        name: {"sha256": digest(path), "bytes": os.path.getsize(path)}
        for name, path in ((name, os.path.join(directory, name)) for name in names)
    }
    text = json.dumps(dict(manifest, format=FORMAT, files=entries), indent=1, sort_keys=True).encode()
    with tarfile.open(fileobj=stream, mode="w|gz") as archive:
        archive.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as content:
                archive.addfile(_member(name, os.path.getsize(path)), content)


def read(stream: IO[bytes], directory: Optional[str] = None) -> Manifest:
    """The manifest of a backup, after comparing each file with it; ArchiveError.

    With a directory, the files are written there, for root alone. A file that exists is an error.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|gz") as archive:
            members = iter(archive)
            manifest = _manifest(archive, next(members, None))
            if directory is not None:
                check_space(directory, sum(entry["bytes"] for entry in manifest["files"].values()))
            found = set()
            for member in members:
                source = archive.extractfile(member) if member.isreg() else None
                if member.name not in manifest["files"] or source is None:
                    raise ArchiveError("it has {}, which its manifest does not name".format(member.name))
                if member.name in found or member.size != manifest["files"][member.name]["bytes"]:
                    raise ArchiveError("{} in it occurs twice or has another size".format(member.name))
                taken = _taken(source, member.name, directory)
                if taken != manifest["files"][member.name]["sha256"]:
                    raise ArchiveError("{} in it was changed".format(member.name))
                found.add(member.name)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        if directory is not None and isinstance(error, OSError):
            raise  # the disk that is written to is full or fails
        raise ArchiveError("it is damaged or cut off ({})".format(error)) from error
    missing = sorted(set(manifest["files"]) - found)
    if missing:
        raise ArchiveError("it is cut off: {} is missing".format(missing[0]))
    return manifest


def _manifest(archive: tarfile.TarFile, member: Optional[tarfile.TarInfo]) -> Manifest:
    """The manifest, checked; ArchiveError."""
    source = archive.extractfile(member) if member is not None and member.isreg() else None
    if member is None or source is None or member.name != MANIFEST:
        raise ArchiveError("it does not begin with a manifest: it is no backup of this project")
    if member.size > MANIFEST_BYTES:
        raise ArchiveError("its manifest is larger than {} bytes".format(MANIFEST_BYTES))
    try:
        manifest: Manifest = json.loads(source.read().decode("utf-8"))
        if manifest["format"] != FORMAT:
            raise ArchiveError("it has the format {}, and {} is known".format(manifest["format"], FORMAT))
        for fact, form in FACTS.items():
            if form.fullmatch(manifest[fact]) is None:
                raise ArchiveError("its manifest has no valid {}".format(fact))
        for name, entry in manifest["files"].items():
            if entry["bytes"] != abs(int(entry["bytes"])) or not FACTS["ca"].fullmatch(entry["sha256"]):
                raise ArchiveError("its manifest has no valid hash and size of {!r}".format(name))
            if not is_known(name):
                raise ArchiveError("its manifest names the file {!r}, which no backup has".format(name))
        _check_data(manifest)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArchiveError("its manifest cannot be read") from error
    return manifest


def is_known(name: str) -> bool:
    """Can a backup have a file of this name?"""
    parts = name.split("/")
    return (
        NAME.fullmatch(name) is not None and not {".", ".."} & set(parts) and not re.search(r"[\0\n]", name)
    )


def _check_data(manifest: Manifest) -> None:
    """ArchiveError unless there are a token and the data of its data store, and of no other."""
    there = [name for name in DATA.values() if name in manifest["files"]]
    if there != [DATA[manifest["datastore"]]] or "server/token" not in manifest["files"]:
        raise ArchiveError("it does not have the token and the data of one data store")


def _taken(source: IO[bytes], name: str, directory: Optional[str]) -> str:
    """The hash of a member, which is written below the directory if there is one."""
    if directory is None:
        return _copy(source, None)
    path = os.path.join(directory, name)
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as sink:
        found = _copy(source, sink)
        sink.flush()
        os.fsync(sink.fileno())
    return found


def _copy(source: IO[bytes], sink: Optional[IO[bytes]]) -> str:
    """SHA-256 of a stream, which is copied to the sink if there is one."""
    found = hashlib.sha256()
    for chunk in iter(lambda: source.read(CHUNK), b""):
        found.update(chunk)
        if sink is not None:
            sink.write(chunk)
    return found.hexdigest()


def _member(name: str, size: int) -> tarfile.TarInfo:
    """The header of a file for root alone."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = PRIVATE
    return member


def check_space(directory: str, needed: int) -> None:
    """OSError unless `needed` bytes fit and 5 % of the disk stay free: below, the kubelet evicts pods."""
    disk = shutil.disk_usage(directory)
    if disk.free < needed + disk.total // 20:
        raise OSError(
            "{}: {:.0f} MB are needed, and {:.0f} MB are free on this disk of {:.1f} GB, of which 5 % stay "
            "free: delete files there".format(directory, needed / 1e6, disk.free / 1e6, disk.total / 1e9)
        )
