#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Record on the controller that it has made a backup.

Runs on the controller.
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.k3s_archive import ArchiveError
from ansible.module_utils.k3s_backup_record import add

DOCUMENTATION = r"""
module: k3s_backup_record
short_description: Record a backup that was made, by its hash
description:
  - Appends a line to the record, as sha256sum writes it. C(k3s_backup_read) accepts recorded backups.
author: The jetson-k3s authors
options:
  path:
    description: The record.
    type: path
    required: true
  name:
    description: Name of the backup's file.
    type: str
    required: true
  sha256:
    description: Its hash.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    details: Nothing is written.
"""

RETURN = ""


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "sha256": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        if not module.check_mode:
            add(params["path"], params["sha256"], params["name"])
    except (ArchiveError, OSError) as error:
        module.fail_json(msg="k3s_backup_record: {}".format(error))
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
