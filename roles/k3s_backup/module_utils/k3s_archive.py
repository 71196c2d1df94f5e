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

FORMAT = "jetson-k3s-backup/1"
MANIFEST = "manifest.json"
# Below /var/lib/rancher/k3s/server, /etc/rancher/k3s and /etc/rancher/node of the server.
TREES = ("server", "etc", "node")
CHUNK = 1 << 20
PRIVATE = 0o600


class ArchiveError(Exception):
    """That is no whole backup; the text says why."""


def digest(path):
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as stream:
        return _copy(stream, None)


def write(stream, directory, manifest):
    """Write what is below the directory, and before it the manifest, to which hashes and sizes are added."""
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


def read(stream, directory=None):
    """The manifest of a backup, once every file in it was compared with it; ArchiveError.

    With a directory the files are written there, for root alone. What is there already is an error.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|gz") as archive:
            members = iter(archive)
            manifest = _manifest(archive, next(members, None))
            if directory is not None:
                check_room(directory, sum(entry["bytes"] for entry in manifest["files"].values()))
            found = set()
            for member in members:
                if member.name not in manifest["files"] or not member.isreg():
                    raise ArchiveError("it has {}, which its manifest does not name".format(member.name))
                taken = _taken(archive.extractfile(member), member.name, directory)
                if taken != manifest["files"][member.name]["sha256"]:
                    raise ArchiveError("{} in it is not what was written".format(member.name))
                found.add(member.name)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        if directory is not None and isinstance(error, OSError):
            raise  # of the disk that is written to, or it has no room
        raise ArchiveError("it is damaged or cut off ({})".format(error)) from error
    missing = sorted(set(manifest["files"]) - found)
    if missing:
        raise ArchiveError("it is cut off: {} is missing".format(missing[0]))
    return manifest


def _manifest(archive, member):
    """The manifest, checked; ArchiveError."""
    if member is None or member.name != MANIFEST or not member.isreg():
        raise ArchiveError("it does not begin with a manifest: it is no backup of this project")
    try:
        manifest = json.loads(archive.extractfile(member).read().decode("utf-8"))
        if manifest["format"] != FORMAT:
            raise ArchiveError("it has the format {}, and {} is known".format(manifest["format"], FORMAT))
        for name, entry in manifest["files"].items():
            int(entry["bytes"]), str(entry["sha256"])
            if name.split("/")[0] not in TREES or ".." in name.split("/") or re.search(r"//|[\0\n]", name):
                raise ArchiveError("its manifest names the file {!r}".format(name))
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveError("its manifest cannot be read") from error
    return manifest


def _taken(source, name, directory):
    """The hash of a member, which is written below the directory if there is one."""
    if directory is None:
        return _copy(source, None)
    path = os.path.join(directory, name)
    if not os.path.isdir(os.path.dirname(path)):
        os.makedirs(os.path.dirname(path), 0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "wb") as sink:
        found = _copy(source, sink)
        sink.flush()
        os.fsync(sink.fileno())
    return found


def _copy(source, sink):
    """SHA-256 of what a stream has, which goes to the sink if there is one."""
    found = hashlib.sha256()
    for chunk in iter(lambda: source.read(CHUNK), b""):
        found.update(chunk)
        if sink is not None:
            sink.write(chunk)
    return found.hexdigest()


def _member(name, size):
    """A file of root's alone."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = PRIVATE
    return member


def check_room(directory, needed):
    """OSError unless the disk has room for so many bytes and 5 % of itself, where the kubelet evicts pods."""
    disk = shutil.disk_usage(directory)
    if disk.free < needed + disk.total // 20:
        raise OSError(
            "{}: {:.0f} MB are needed, and {:.0f} MB are free on this disk of {:.1f} GB, of which 5 % stay "
            "free: make room there".format(directory, needed / 1e6, disk.free / 1e6, disk.total / 1e9)
        )
