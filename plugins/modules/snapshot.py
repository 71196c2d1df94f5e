#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Capture this board into a snapshot without secrets and identities. Changes nothing and writes no file.

Runs on the board, therefore Python 3.6 compatible.
"""

import base64

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.snapshot_capture import capture

DOCUMENTATION = r"""
module: snapshot
short_description: Capture this board into a snapshot without secrets and identities
description:
  - Reads the files, device nodes and programs of one list. Replaces names, addresses and secrets.
  - What cannot be read is recorded in the archive with the reason.
options:
  names: {type: list, elements: str, default: [], description: Names of boards and servers to replace.}
  tool: {type: dict, required: true, description: Name and version of the program that makes the snapshot.}
  key: {required: true, description: 'Decides the placeholders, as hexadecimal digits.'}
"""

RETURN = r"""
archive: {type: str, description: 'The archive, in base64.'}
"""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "default": []},
            "tool": {"type": "dict", "required": True},
            "key": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    archive = capture(
        "/",
        module.params["tool"],
        names=module.params["names"],
        key=bytes.fromhex(module.params["key"]),
    )
    module.exit_json(changed=False, archive=base64.b64encode(archive).decode())


if __name__ == "__main__":
    main()
