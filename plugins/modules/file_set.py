#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ensure a set of small files, links and directories in one round trip, and remember a restart that is due.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
from typing import Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.atomic_files import leave_marker
from ansible_collections.jetson_k3s.cluster.plugins.module_utils.file_entries import (
    FILES,
    changed_entries,
    difference,
    put,
)

DOCUMENTATION = r"""
module: file_set
short_description: A set of small files, links and directories in one round trip
description:
  - Writes each file atomically and only when it differs. Directories that are missing are made.
  - Before the first change the marker is made, if one is given. It stays until the role deletes it after the
    restart. So the next run completes a run that was interrupted between the change and the restart.
options:
  files:
    description:
      - Each with C(path), and with C(content) and C(mode), or with C(directory) and C(mode), or with C(link),
        or with C(absent).
      - With C(secret) instead of C(content) it comes from C(secrets) and is not shown at all.
      - The diff is without a file's old secrets. A task that writes one by C(content) needs C(no_log).
    type: list
    elements: dict
    required: true
  secrets: {type: dict, default: {}, description: Contents by path. They are in no message and no log.}
  due: {type: bool, default: false, description: Whether a restart is due for another reason.}
  postpone: {type: bool, default: false, description: Change nothing and report C(postponed).}
  marker: {type: path, description: 'Marker of the restart that is due, in /run. Without it none is due.'}
"""

RETURN = r"""
postponed: {type: bool, description: Whether a change was postponed.}
restart_due: {type: bool, description: 'Whether the marker exists, or would exist outside check mode.'}
"""


def left(marker: Optional[str]) -> bool:
    """Whether an earlier change has left the marker."""
    return marker is not None and os.path.exists(marker)


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "files": dict(FILES, required=True),
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "due": {"type": "bool", "default": False},
            "postpone": {"type": "bool", "default": False},
            "marker": {"type": "path"},
        },
        supports_check_mode=True,
    )
    marker, due, secrets = module.params["marker"], module.params["due"], module.params["secrets"]
    changes = changed_entries(module.params["files"], secrets)
    if module.params["postpone"]:
        module.exit_json(changed=False, postponed=bool(changes), paths=[], restart_due=due or left(marker))
    diff = [difference(entry) for entry in changes]
    if (changes or due) and not module.check_mode:
        if marker:
            leave_marker(marker)
        for entry in changes:
            put(entry)
    module.exit_json(
        changed=bool(changes),
        postponed=False,
        paths=[entry["path"] for entry in changes],
        restart_due=bool(changes and marker) or due or left(marker),
        diff=diff,
    )


if __name__ == "__main__":
    main()
