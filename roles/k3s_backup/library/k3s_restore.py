#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The data of a backup in the place of those of this K3s server, in steps that can each be taken back.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
import shutil
import time

from ansible.module_utils.atomic_files import replace_file
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_archive import ArchiveError, digest, read
from ansible.module_utils.k3s_gpg import decrypt_with_session_key
from ansible.module_utils.k3s_token import secret
from ansible.module_utils.private_directory import private_directory

DOCUMENTATION = r"""
module: k3s_restore
short_description: The data of a backup on a K3s server
description:
  - C(checked) unpacks the backup into a directory that is removed again. K3s may run.
  - C(placed) unpacks it and puts its files into place. What was there is kept, under another name. K3s must
    be stopped.
  - The backup is unpacked into a directory of root's alone, which is removed when the module ends.
  - C(taken_back) undoes that.
  - C(aside) is for further servers of the cluster, which get their data from the first server.
options:
  archive: {type: path, description: The backup. For C(checked) and C(placed).}
  sha256: {description: The hash that the file must have. For C(checked) and C(placed).}
  session_key:
    description: What decrypts this file, from C(gpg --show-session-key). Empty if it is not encrypted.
  token:
    description:
      The server token that K3s will be started with, if the inventory has one. For C(checked) and C(placed).
  kept: {type: path, description: Where C(placed) has kept the old data. For C(taken_back).}
  state: {choices: [checked, placed, taken_back, aside], required: true, description: What is wanted.}
"""

RETURN = r"""
snapshot: {type: str, returned: C(placed), description: 'etcd''s snapshot, null with SQLite.'}
kept: {type: str, returned: C(placed) and C(aside), description: 'Directory of the old data, or null.'}
"""

DATA = "/var/lib/rancher/k3s/server"
CONFIG = "/etc/rancher/k3s"
NODE_PASSWORD = "/etc/rancher/node/password"  # noqa: S105 - a path
NEW, OLD = ".restoring", ".before-"


def unpacking(data):
    """A directory beside the data for the files of a backup, which is gone after the block."""
    parent, name = os.path.split(data + NEW)
    os.makedirs(parent, 0o755, exist_ok=True)
    return private_directory(parent, name + "-")


def unpack(params, new, gpg):
    """Write the backup's files below a directory; return its manifest. ArchiveError, OSError."""
    archive, token, key = params["archive"], params["token"], params["session_key"]
    if key and gpg is None:
        raise ArchiveError("the board has no gpg to decrypt with: sudo apt-get install gnupg")
    if digest(archive) != params["sha256"]:
        raise ArchiveError("the file that has arrived is not the backup that was read on the controller")
    if key:
        home = os.path.join(new, "gnupg")
        os.mkdir(home, 0o700)
        manifest = decrypt_with_session_key(gpg, home, archive, key, lambda stream: read(stream, new))
    else:
        with open(archive, "rb") as stream:
            manifest = read(stream, new)
    with open(os.path.join(new, "server", "token")) as stream:
        # K3s does not start with another one: it has encrypted the keys of its CAs with it.
        if token and secret(token) != secret(stream.read()):
            raise ArchiveError(
                "k3s_token is not the token that this cluster had on {}. Set k3s_token to the old token "
                "(playbooks/rotate_token.yml keeps old ones in /etc/rancher/k3s on the server), or take it "
                "out of the inventory. Change it after the restore".format(manifest["created"])
            )
    return manifest


def kept(path):
    """Where what lies at the path is kept, a name that is free; None if nothing is there."""
    return path + OLD + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) if os.path.exists(path) else None


def place(data, new, manifest):
    """Exchange the data; return (snapshot of etcd or None, where the old data are or None). OSError."""
    for name in manifest["files"]:
        tree, _, rest = name.partition("/")
        target = {"etc": os.path.join(CONFIG, rest), "node": NODE_PASSWORD}.get(tree)
        # The owner's newer file stays. By the password the cluster knows this node, if it is the same.
        same = tree == "node" and manifest["server"] == os.uname().nodename.lower()
        if target is not None and (same or not os.path.exists(target)):
            with open(os.path.join(new, name), encoding="utf-8") as stream:
                replace_file(target, stream.read(), 0o600)
    old = kept(data)
    if old:
        os.rename(data, old)
    try:
        os.rename(os.path.join(new, "server"), data)
    except OSError:
        if old:
            os.rename(old, data)
        raise
    snapshot = os.path.join(data, "db", "snapshot")
    return snapshot if os.path.exists(snapshot) else None, old


def take_back(data, old):
    """Put the old data back. What was restored is gone then."""
    shutil.rmtree(data)
    os.rename(old, data)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path"},
            "sha256": {"type": "str"},
            "session_key": {"type": "str", "no_log": True},
            "token": {"type": "str", "no_log": True},
            "kept": {"type": "path"},
            "state": {
                "type": "str",
                "choices": ["checked", "placed", "taken_back", "aside"],
                "required": True,
            },
        },
        required_if=[
            ("state", "checked", ["archive", "sha256"]),
            ("state", "placed", ["archive", "sha256"]),
            ("state", "taken_back", ["kept"]),
        ],
        supports_check_mode=True,
    )
    state = module.params["state"]
    os.umask(0o077)
    if module.check_mode:
        module.exit_json(changed=True, snapshot=None, kept=None)
    try:
        if state in ("checked", "placed"):
            with unpacking(DATA) as new:
                manifest = unpack(module.params, new, module.get_bin_path("gpg"))
                snapshot, old = place(DATA, new, manifest) if state == "placed" else (None, None)
            module.exit_json(changed=state == "placed", snapshot=snapshot, kept=old)
        if state == "taken_back":
            take_back(DATA, module.params["kept"])
            module.exit_json(changed=True)
        old = kept(os.path.join(DATA, "db"))
        if old:
            os.rename(os.path.join(DATA, "db"), old)
        module.exit_json(changed=old is not None, kept=old)
    except (ArchiveError, OSError, KeyError, UnicodeDecodeError) as error:
        module.fail_json(msg="{}: {}".format(state, error))


if __name__ == "__main__":
    main()
