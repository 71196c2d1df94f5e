#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The backups that this controller has made: record one, or read one that is in the record.

A backup is encrypted for a public key, so anybody who has that key can make a file that decrypts. The record
tells a backup from such a file. It does not lie where the backups lie. Runs on the controller.
"""

import contextlib
import os
import re
import shutil
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.file_locks import lock
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_archive import ArchiveError, digest, read
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_gpg import decrypt

DOCUMENTATION = r"""
module: k3s_backup_record
short_description: Record a backup that was made, or read a recorded one and say what it is of
description:
  - With O(name) it appends a line to the record, as sha256sum writes it.
  - With O(backup) it refuses a file that is not in the record, and whose hash the user has not accepted.
  - A file that ends in C(.gpg) is decrypted by the user's own gpg, in a pipe. Nothing is written.
options:
  record: {type: path, required: true, description: The record of backups that this computer has made.}
  name: {description: Name of the file that was made.}
  sha256: {description: Its hash.}
  backup: {type: path, description: 'The backup to read, as playbooks/backup.yml has brought it.'}
  accepted: {description: SHA-256 of a file that the user accepts without a record.}
  key: {type: bool, default: false, description: 'Return the session key, which is a secret.'}
"""

RETURN = r"""
manifest: {type: dict, returned: with O(backup), description: Facts of the backup and the hash of each file.}
path: {type: str, returned: with O(backup), description: The file's absolute path.}
sha256: {type: str, returned: with O(backup), description: The file's hash.}
session_key: {type: str, returned: with O(key), description: 'Of this file, or empty if it is not encrypted.'}
"""

Data = Dict[str, Any]  # a backup's manifest

LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")
OTHERS_WRITE = 0o022
SESSION_KEY = re.compile(rb"^\[GNUPG:\] SESSION_KEY (\S+)$", re.MULTILINE)


def add(record: str, sha256: str, name: str) -> None:
    """Append a backup. ArchiveError, OSError."""
    line = "{}  {}".format(sha256, name)
    if LINE.fullmatch(line) is None or "/" in name:
        raise ArchiveError(
            "a backup cannot be recorded by the name {!r} and the hash {!r}".format(name, sha256)
        )
    os.makedirs(os.path.dirname(record), 0o700, exist_ok=True)
    with os.fdopen(os.open(record, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as stream:
        lock(stream.fileno(), record)
        text = stream.read()
        # A line that a power cut has cut off stays alone.
        stream.write((b"\n" if text and not text.endswith(b"\n") else b"") + line.encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def names(record: str, sha256: str) -> List[str]:
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


def check(record: str, path: str, sha256: str, accepted: Optional[str]) -> None:
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


def opened(path: str, gpg: Optional[str]) -> Tuple[Data, str]:
    """The manifest of a backup that is complete, and its session key or "". ArchiveError, OSError."""
    if not path.endswith(".gpg"):
        with open(path, "rb") as stream:
            return read(stream), ""
    if gpg is None:
        raise ArchiveError("it is encrypted and this computer has no gpg; install gnupg")
    with tempfile.TemporaryFile() as status:
        number = status.fileno()
        manifest = decrypt(gpg, path, read, ("--show-session-key", "--status-fd", str(number)), (number,))
        status.seek(0)
        found = SESSION_KEY.search(status.read())
    if found is None:
        raise ArchiveError("gpg does not say the session key")
    return manifest, found.group(1).decode("ascii")


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "path", "required": True},
            "name": {"type": "str"},
            "sha256": {"type": "str"},
            "backup": {"type": "path"},
            "accepted": {"type": "str"},
            "key": {"type": "bool", "default": False, "no_log": False},
        },
        required_together=[("name", "sha256")],
        required_one_of=[("name", "backup")],
        mutually_exclusive=[("name", "backup")],
        supports_check_mode=True,
    )
    params = module.params
    record = params["record"]
    try:
        if params["name"] is not None:
            if not module.check_mode:
                add(record, params["sha256"], params["name"])
            module.exit_json(changed=True)
        path = os.path.abspath(params["backup"])
        sha256 = digest(path)
        check(record, path, sha256, params["accepted"])
        manifest, key = opened(path, shutil.which("gpg"))
    except (ArchiveError, OSError) as error:
        subject = params["name"] or "{} is no backup that can be restored".format(params["backup"])
        module.fail_json(msg="{}: {}. Nothing was changed.".format(subject, error))
    module.exit_json(
        changed=False,
        path=path,
        manifest=manifest,
        sha256=sha256,
        session_key=key if params["key"] else "",
    )


if __name__ == "__main__":
    main()
