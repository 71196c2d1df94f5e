#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The data of a backup in the place of those of this K3s server, in steps that can each be taken back.

Runs on the board, therefore Python 3.6 compatible.
"""

import json
import os
import shutil
from typing import Any, ContextManager, Dict, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import replace_file
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_archive import (
    SNAPSHOT,
    ArchiveError,
    check_space,
    digest,
    read,
)
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_gpg import decrypt_with_session_key
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.k3s_token import secret
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.private_directory import private_directory

DOCUMENTATION = r"""
module: k3s_restore
short_description: The data of a backup on a K3s server
description:
  - C(checked) changes nothing, and K3s may run. With O(archive) it unpacks the backup into a directory that
    is removed again. It checks that there is enough disk space, and that the names for the old data are free.
  - C(placed) unpacks the backup and exchanges the data of the first server. K3s must be stopped.
  - C(aside) moves the data store of a further server away, which gets its data from the first one. K3s must
    be stopped.
  - Both keep what was there under another name, and record that before. C(taken_back) brings it back by the
    record, and C(finished) removes the record, so that the old data stay where they are kept.
  - The backup is unpacked into a directory of root's alone, which is removed when the module ends.
options:
  data: {type: path, required: true, description: The directory of K3s' server data.}
  archive: {type: path, description: The backup. For C(placed), and C(checked) on the first server.}
  sha256: {description: The hash that the file must have.}
  session_key:
    description: What decrypts this file, from C(gpg --show-session-key). Empty if it is not encrypted.
  token: {description: 'The server token that K3s will be started with, if the inventory has one.'}
  bytes: {type: int, default: 0, description: 'What a further server will get, for C(checked).'}
  stamp: {description: 'The time of the run, with which names of old data end.'}
  running:
    type: bool
    default: true
    description:
      Whether K3s runs with the present data. If it does not, and a restore was interrupted here, the data
      that this restore has kept are those from before.
  state: {choices: [checked, placed, aside, taken_back, finished], required: true, description: As above.}
"""

RETURN = r"""
snapshot: {type: str, returned: C(placed), description: 'etcd''s snapshot, null with SQLite.'}
place: {type: str, description: 'What is exchanged, or moved away.'}
kept: {type: str, description: 'Where it is kept, or would be; null if there is nothing to keep.'}
"""

Data = Dict[str, Any]  # parsed JSON, or parameters

CONFIG = "/etc/rancher/k3s"
NODE_PASSWORD = "/etc/rancher/node/password"  # noqa: S105 - a path
NEW, OLD, RECORD = ".restoring", ".before-", "restore.json"


def unpacking(data: str) -> ContextManager[str]:
    """A directory beside the data for the files of a backup, which is gone after the block."""
    parent, name = os.path.split(data + NEW)
    os.makedirs(parent, 0o755, exist_ok=True)
    return private_directory(parent, name + "-")


def unpack(params: Data, new: str, gpg: Optional[str]) -> Data:
    """Write the backup's files below a directory; return its manifest. ArchiveError, OSError."""
    archive, token, key = params["archive"], params["token"], params["session_key"]
    if key and gpg is None:
        raise ArchiveError("the board has no gpg to decrypt with: sudo apt-get install gnupg")
    if digest(archive) != params["sha256"]:
        raise ArchiveError("the file that has arrived is not the backup that was read on the controller")
    if key and gpg:
        home = os.path.join(new, "gnupg")
        os.mkdir(home, 0o700)
        manifest = decrypt_with_session_key(gpg, home, archive, key, lambda stream: read(stream, new))
    else:
        with open(archive, "rb") as packed:
            manifest = read(packed, new)
    # etcd writes its data from the snapshot, which stays until then.
    check_space(new, manifest["files"].get(SNAPSHOT, {"bytes": 0})["bytes"])
    with open(os.path.join(new, "server", "token")) as stream:
        # K3s does not start with another one: it has encrypted the keys of its CAs with it.
        if token and secret(token) != secret(stream.read()):
            raise ArchiveError(
                "k3s_token is not the token that this cluster had on {}. Set k3s_token to the old token "
                "(playbooks/rotate_token.yml keeps old ones in /etc/rancher/k3s on the server), or take it "
                "out of the inventory. Change it after the restore".format(manifest["created"])
            )
    return manifest


def existing(path: str) -> str:
    """The directory, or the next one above it that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def record_of(data: str) -> str:
    """Where an unfinished restore is recorded."""
    return os.path.join(os.path.dirname(data), RECORD)


def recorded(data: str) -> Optional[Data]:
    """The record of an unfinished restore: {place, kept, stamp}; None without one or what it has kept."""
    try:
        with open(record_of(data)) as stream:
            found = json.load(stream)
    except (FileNotFoundError, ValueError):
        return None
    return found if found["kept"] is None or os.path.exists(found["kept"]) else None


def plan(data: str, place: str, stamp: str, running: bool) -> Optional[str]:
    """Where the data from before are kept, or would be; None without any. ArchiveError: no free name."""
    before = recorded(data)
    kept: Optional[str] = before["kept"] if before and before["place"] == place else None
    if kept and not running:
        return kept
    if not os.path.exists(place):
        return None
    fresh = place + OLD + stamp
    if os.path.exists(fresh):
        raise ArchiveError(
            "{} exists already, so the clock of the computer that runs the playbook may be wrong. Set it, or "
            "rename this directory".format(fresh)
        )
    return fresh


def move_away(data: str, place: str, stamp: str, running: bool) -> Optional[str]:
    """Move away what lies at the place; return where the data from before are kept. ArchiveError, OSError.

    What an interrupted restore has left at the place is no data from before. It is kept as well.
    """
    kept = plan(data, place, stamp, running)
    replace_file(record_of(data), json.dumps({"place": place, "kept": kept, "stamp": stamp}), 0o600)
    if os.path.exists(place):
        os.rename(place, place + OLD + stamp)
    return kept


def put_files(new: str, manifest: Data) -> None:
    """Put the owner's configuration and the node's password into their places."""
    for name in manifest["files"]:
        tree, _, rest = name.partition("/")
        target = {"etc": os.path.join(CONFIG, rest), "node": NODE_PASSWORD}.get(tree)
        # The owner's newer file stays. By the password the cluster knows this node, if it is the same.
        same = tree == "node" and manifest["server"] == os.uname().nodename.lower()
        if target is not None and (same or not os.path.exists(target)):
            with open(os.path.join(new, name), encoding="utf-8") as stream:
                replace_file(target, stream.read(), 0o600)


def place_backup(params: Data, new: str, manifest: Data) -> Tuple[Optional[str], Optional[str]]:
    """Exchange the data; return (snapshot of etcd or None, where the old data are or None). OSError."""
    data = params["data"]
    put_files(new, manifest)
    kept = move_away(data, data, params["stamp"], params["running"])
    try:
        os.rename(os.path.join(new, "server"), data)
    except OSError:
        take_back(data, params["stamp"])
        raise
    snapshot = os.path.join(data, "db", "snapshot")
    return snapshot if os.path.exists(snapshot) else None, kept


def take_back(data: str, stamp: str) -> bool:
    """Put the data from before back, if this run has moved them; return whether it has. OSError.

    What has taken their place goes: it came from the backup, or from the first server.
    """
    record = recorded(data)
    if record is None or record["stamp"] != stamp:
        return False
    if os.path.exists(record["place"]):
        shutil.rmtree(record["place"])
    if record["kept"]:
        os.rename(record["kept"], record["place"])
    os.unlink(record_of(data))
    return True


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "data": {"type": "path", "required": True},
            "archive": {"type": "path"},
            "sha256": {"type": "str"},
            "session_key": {"type": "str", "no_log": True},
            "token": {"type": "str", "no_log": True},
            "bytes": {"type": "int", "default": 0},
            "stamp": {"type": "str"},
            "running": {"type": "bool", "default": True},
            "state": {
                "type": "str",
                "choices": ["checked", "placed", "aside", "taken_back", "finished"],
                "required": True,
            },
        },
        required_if=[
            ("state", "checked", ["stamp"]),
            ("state", "placed", ["archive", "sha256", "stamp"]),
            ("state", "aside", ["stamp"]),
            ("state", "taken_back", ["stamp"]),
        ],
        required_together=[("archive", "sha256")],
        supports_check_mode=True,
    )
    params = module.params
    state, data = params["state"], params["data"]
    place = data if params["archive"] else os.path.join(data, "db")
    os.umask(0o077)
    if module.check_mode:
        module.exit_json(changed=state != "checked", snapshot=None, place=place, kept=None)
    try:
        if state in ("taken_back", "finished"):
            if state == "finished" and os.path.exists(record_of(data)):
                os.unlink(record_of(data))
            module.exit_json(changed=state == "taken_back" and take_back(data, params["stamp"]))
        snapshot, kept = None, plan(data, place, params["stamp"], params["running"])
        if state == "aside":
            move_away(data, place, params["stamp"], params["running"])
        elif params["archive"]:
            with unpacking(data) as new:
                manifest = unpack(params, new, module.get_bin_path("gpg"))
                if state == "placed":
                    snapshot, kept = place_backup(params, new, manifest)
        else:
            check_space(existing(data), params["bytes"])
    except (ArchiveError, OSError, KeyError, UnicodeDecodeError) as error:
        module.fail_json(msg="{}: {}".format(state, error))
    module.exit_json(changed=state != "checked", snapshot=snapshot, place=place, kept=kept)


if __name__ == "__main__":
    main()
