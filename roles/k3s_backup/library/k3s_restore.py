#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The data of a backup in the place of those of this K3s server, in steps that can each be taken back.

Runs on the board, therefore Python 3.6 compatible.
"""

import json
import os
import shutil
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_archive import MANIFEST, ArchiveError, read
from ansible.module_utils.k3s_token import secret

DOCUMENTATION = r"""
module: k3s_restore
short_description: The data of a backup on a K3s server
description:
  - C(unpacked) writes and checks the backup's files beside those that K3s uses. K3s may run.
  - C(placed) puts them into place. What was there is kept, under another name. K3s must be stopped.
  - C(taken_back) undoes that.
  - C(aside) is for further servers of the cluster, which get their data anew from the first.
author: The jetson-k3s authors
options:
  archive:
    description: The backup, decrypted. For C(unpacked).
    type: path
  token:
    description: The server token that K3s will be started with, if the inventory has one. For C(unpacked).
    type: str
  kept:
    description: Where C(placed) has kept the old data. For C(taken_back).
    type: path
  state:
    description: What is wanted.
    type: str
    choices: [unpacked, placed, taken_back, aside]
    required: true
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
snapshot:
  description: The snapshot of etcd that K3s is to be reset to; null with SQLite.
  returned: C(placed)
  type: str
kept:
  description: Where the data are that were there before; null if there were none.
  returned: C(placed) and C(aside)
  type: str
"""

DATA = "/var/lib/rancher/k3s/server"
CONFIG = "/etc/rancher/k3s"
NODE_PASSWORD = "/etc/rancher/node/password"  # noqa: S105 - a path
NEW, OLD = ".restoring", ".before-"


def unpack(archive, data, token):
    """Write the backup's files beside the data. ArchiveError, OSError."""
    new = data + NEW
    if os.path.isdir(new):
        shutil.rmtree(new)  # of a run that was cut off
    os.makedirs(new, 0o700)
    with open(archive, "rb") as stream:
        manifest = read(stream, new)
    with open(os.path.join(new, "server", "token")) as stream:
        # K3s does not start with another one: it has encrypted the keys of its CAs with it.
        if token and secret(token) != secret(stream.read()):
            raise ArchiveError(
                "k3s_token is not the token that this cluster had on {}. Set k3s_token to the one of then "
                "(playbooks/rotate_token.yml keeps old ones in /etc/rancher/k3s on the server), or take it "
                "out of the inventory. Change it after the restore".format(manifest["created"])
            )
    with open(os.path.join(new, MANIFEST), "w") as stream:
        json.dump(manifest, stream)


def kept(path):
    """Where what lies at the path is kept, a name that is free; None if nothing is there."""
    return path + OLD + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) if os.path.exists(path) else None


def place(data):
    """Exchange the data; return (snapshot of etcd or None, where the old data are or None). OSError."""
    new = data + NEW
    with open(os.path.join(new, MANIFEST)) as stream:
        manifest = json.load(stream)
    for name in manifest["files"]:
        tree, _, rest = name.partition("/")
        target = {"etc": os.path.join(CONFIG, rest), "node": NODE_PASSWORD}.get(tree)
        # The owner's newer file stays. By the password the cluster knows this node, if it is the same.
        same = tree == "node" and manifest["server"] == os.uname().nodename.lower()
        if target is not None and (same or not os.path.exists(target)):
            if not os.path.isdir(os.path.dirname(target)):
                os.makedirs(os.path.dirname(target), 0o755)
            shutil.copyfile(os.path.join(new, name), target + NEW)
            os.chmod(target + NEW, 0o600)
            os.rename(target + NEW, target)
    old = kept(data)
    if old:
        os.rename(data, old)
    try:
        os.rename(os.path.join(new, "server"), data)
    except OSError:
        if old:
            os.rename(old, data)
        raise
    shutil.rmtree(new)
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
            "token": {"type": "str", "no_log": True},
            "kept": {"type": "path"},
            "state": {
                "type": "str",
                "choices": ["unpacked", "placed", "taken_back", "aside"],
                "required": True,
            },
        },
        required_if=[("state", "unpacked", ["archive"]), ("state", "taken_back", ["kept"])],
        supports_check_mode=True,
    )
    state = module.params["state"]
    os.umask(0o077)
    if module.check_mode:
        module.exit_json(changed=True, snapshot=None, kept=None)
    try:
        if state == "unpacked":
            unpack(module.params["archive"], DATA, module.params["token"])
            module.exit_json(changed=True)
        if state == "placed":
            snapshot, old = place(DATA)
            module.exit_json(changed=True, snapshot=snapshot, kept=old)
        if state == "taken_back":
            take_back(DATA, module.params["kept"])
            module.exit_json(changed=True)
        old = kept(os.path.join(DATA, "db"))
        if old:
            os.rename(os.path.join(DATA, "db"), old)
        module.exit_json(changed=old is not None, kept=old)
    except (ArchiveError, OSError, KeyError) as error:
        module.fail_json(msg="{}: {}".format(state, error))


if __name__ == "__main__":
    main()
