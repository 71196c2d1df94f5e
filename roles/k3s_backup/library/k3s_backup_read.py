#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""What a backup is of, once all of it was read, decrypted and compared with its manifest.

Runs on the controller.
"""

import os
import shutil
import subprocess
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_archive import ArchiveError, read

DOCUMENTATION = r"""
module: k3s_backup_read
short_description: Read a backup of a K3s server, and say what it is of
description:
  - A file that ends in C(.gpg) is decrypted by the user's own gpg, on the way. Nothing is written.
author: The jetson-k3s authors
options:
  path:
    description: The backup, as playbooks/backup.yml has brought it.
    type: path
    required: true
attributes:
  check_mode:
    support: full
"""

RETURN = r"""
manifest:
  description: C(created), C(server), C(k3s_version), C(datastore), C(ca), and the hash of each file.
  returned: success
  type: dict
"""


def manifest_of(path, gpg):
    """The manifest of a backup that is whole. ArchiveError, OSError."""
    if not path.endswith(".gpg"):
        with open(path, "rb") as stream:
            return read(stream)
    if gpg is None:
        raise ArchiveError("it is encrypted and this computer has no gpg; install gnupg")
    argv = [gpg, "--batch", "--quiet", "--decrypt", "--", path]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
        problem = None
        try:
            manifest = read(process.stdout)
            for _ in iter(lambda: process.stdout.read(1 << 20), b""):
                pass  # gpg judges the file when it has seen its end
        except ArchiveError as error:
            problem = error
        finally:
            process.stdout.close()
            status = process.wait()
        if status != 0:
            said.seek(0)
            words = said.read().decode("utf-8", "replace").strip()
            raise ArchiveError("gpg does not decrypt it: {}".format(words or problem))
        if problem is not None:
            raise problem
        return manifest


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True
    )
    path = os.path.abspath(module.params["path"])
    try:
        manifest = manifest_of(path, shutil.which("gpg"))
    except (ArchiveError, OSError) as error:
        module.fail_json(
            msg="{} is no backup that can be restored: {}. Nothing was changed.".format(path, error)
        )
    module.exit_json(changed=False, manifest=manifest)


if __name__ == "__main__":
    main()
