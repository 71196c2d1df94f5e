#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Make, verify and remove a directory for uploads that no other user of the board can reach.

Runs on the board, therefore Python 3.6 compatible.
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.uploads import (
    PROJECT,
    UPLOADS,
    UploadError,
    make,
    remove,
    verify,
)

DOCUMENTATION = r"""
module: upload_directory
short_description: A directory for uploads that only root can reach
description:
  - C(present) makes a new directory in C(jetson-k3s/uploads) below O(base). A directory on the way that
    another user owns or can change, and a symbolic link, is an error.
  - C(verified) compares the files in it with their SHA-256.
  - C(absent) removes it.
options:
  state: {choices: [present, verified, absent], required: true, description: What to do.}
  base: {type: path, required: true, description: A directory of root's.}
  path: {type: path, description: 'The directory, as C(present) has returned it.'}
  files: {type: dict, description: 'For C(verified) the SHA-256 of each file, by its name.'}
"""

RETURN = r"""
path: {type: str, returned: with C(present), description: The directory. In check mode it is not made.}
"""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "verified", "absent"], "required": True},
            "base": {"type": "path", "required": True},
            "path": {"type": "path"},
            "files": {"type": "dict"},
        },
        required_if=[("state", "verified", ("path", "files")), ("state", "absent", ("path",))],
        supports_check_mode=True,
    )
    state, base, path, files = (module.params[name] for name in ("state", "base", "path", "files"))
    result = {}
    try:
        if state == "present":
            result["path"] = os.path.join(base, PROJECT, UPLOADS, "new") if module.check_mode else make(base)
        elif module.check_mode:
            pass
        elif state == "verified":
            verify(path, files)
        else:
            remove(base, path)
    except (UploadError, OSError) as error:
        module.fail_json(msg=str(error))
    # An upload is no state of the board: it is gone after its use.
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
