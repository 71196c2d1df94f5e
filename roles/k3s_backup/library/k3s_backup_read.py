#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What a backup is of, once it is known that this computer made it, and all of it was read and compared.

Runs on the controller.
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_archive import ArchiveError, digest, read
from ansible.module_utils.k3s_backup_record import check
from ansible.module_utils.k3s_gpg import decrypt

DOCUMENTATION = r"""
module: k3s_backup_read
short_description: Read a backup of a K3s server, and say what it is of
description:
  - Refuses a file that is not in the record of backups, and whose hash the user has not accepted.
  - A file that ends in C(.gpg) is decrypted by the user's own gpg, on the way. Nothing is written.
author: The jetson-k3s authors
options:
  path:
    description: The backup, as playbooks/backup.yml has brought it.
    type: path
    required: true
  record:
    description: The record of backups that this computer has made.
    type: path
    required: true
  accepted:
    description: SHA-256 of a file that the user accepts without a record.
    type: str
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
manifest:
  description: C(created), C(server), C(k3s_version), C(datastore), C(ca), and the hash of each file.
  returned: success
  type: dict
sha256:
  description: The file's hash.
  returned: success
  type: str
"""


def manifest_of(path, gpg):
    """The manifest of a backup that is complete. ArchiveError, OSError."""
    if not path.endswith(".gpg"):
        with open(path, "rb") as stream:
            return read(stream)
    if gpg is None:
        raise ArchiveError("it is encrypted and this computer has no gpg; install gnupg")
    return decrypt(gpg, path, read)


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "record": {"type": "path", "required": True},
            "accepted": {"type": "str"},
        },
        supports_check_mode=True,
    )
    path = os.path.abspath(module.params["path"])
    try:
        sha256 = digest(path)
        check(module.params["record"], path, sha256, module.params["accepted"])
        manifest = manifest_of(path, shutil.which("gpg"))
    except (ArchiveError, OSError) as error:
        module.fail_json(
            msg="{} is no backup that can be restored: {}. Nothing was changed.".format(path, error)
        )
    module.exit_json(changed=False, manifest=manifest, sha256=sha256)


if __name__ == "__main__":
    main()
