# SPDX-License-Identifier: Apache-2.0
"""The backups that this controller has made: a line for each, as sha256sum writes them.

A backup is encrypted for a public key, so anybody who has that key can make a file that decrypts. The record
tells a backup from such a file. It does not lie where the backups lie. Runs on the controller.
"""

import contextlib
import fcntl
import os
import re

from ansible.module_utils.k3s_archive import ArchiveError

LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
OTHERS_WRITE = 0o022


def add(record, sha256, name):
    """Append a backup. ArchiveError, OSError."""
    line = "{}  {}".format(sha256, name)
    if LINE.fullmatch(line) is None or "/" in name:
        raise ArchiveError(
            "a backup cannot be recorded by the name {!r} and the hash {!r}".format(name, sha256)
        )
    if not os.path.isdir(os.path.dirname(record)):
        os.makedirs(os.path.dirname(record), 0o700)
    with os.fdopen(os.open(record, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        text = stream.read()
        # A line that a power cut has cut off stays alone.
        stream.write((b"\n" if text and not text.endswith(b"\n") else b"") + line.encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def names(record, sha256):
    """Names under which backups with this hash were made; ArchiveError where others can write the record."""
    with contextlib.suppress(FileNotFoundError), open(record, encoding="utf-8", errors="replace") as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & OTHERS_WRITE:
            raise ArchiveError(
                "k3s_backup_record ({}) can be written by other users, so it proves nothing: make it yours "
                "alone (chown, chmod go-w)".format(record)
            )
        matches = filter(None, (LINE.fullmatch(line.rstrip("\n")) for line in stream))
        return [match.group(2) for match in matches if match.group(1) == sha256]
    return []


def check(record, path, sha256, accepted):
    """ArchiveError unless this is a backup of the record under its name, or its hash was accepted."""
    if accepted:
        if accepted.lower() != sha256:
            raise ArchiveError(
                "its SHA-256 is {}, not k3s_backup_accepted_sha256 ({})".format(sha256, accepted)
            )
        return
    recorded, name = names(record, sha256), os.path.basename(path)
    if name in recorded:
        return
    if recorded:
        raise ArchiveError(
            "this computer made it under another name, {}. Give it that name again, if it is the backup that "
            "you want".format(" or ".join(recorded))
        )
    raise ArchiveError(
        "it is not recorded in {}: this computer did not make it, or it was changed since. Anybody who has "
        "the public key can make such a file. Compare its SHA-256 with your own record, or with what "
        "backup.yml printed. If you trust the file: -e k3s_backup_accepted_sha256={}".format(record, sha256)
    )
